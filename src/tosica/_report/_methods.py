"""Sections of the page on what to doubt, and on methods, citations and versions."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from tosica._report._html import Column, Html, count, decimal, element, link, table
from tosica._report._sections import section

if TYPE_CHECKING:
    from tosica._report._cells import Cells
    from tosica._report._doubt import Doubt
    from tosica._report._doubts import Findings
    from tosica._report._embedding import Positions
    from tosica.model import TOSICA

_PACKAGES = (
    *("tosica", "anndata", "bokeh", "numpy", "pandas", "scanpy", "scikit-learn", "scipy"),
    *("scvi-tools", "torch", "umap-learn"),
)
_METHOD = (
    "Chen et al. Transformer for one stop interpretable cell type annotation. Nature "
    "Communications 14, 223 (2023).",
    "10.1038/s41467-023-35923-4",
)
_NOVELTY = (
    "Bates, Candès, Lei, Romano and Sesia. Testing for outliers with conformal p-values. Annals of "
    "Statistics 51, 149 (2023).",
    "10.1214/22-AOS2244",
)
_GRADIENTS = (
    "Sundararajan, Taly and Yan. Axiomatic attribution for deep networks. ICML (2017).",
    "10.48550/arXiv.1703.01365",
)
_UMAP = (
    "McInnes, Healy, Saul and Großberger. UMAP: uniform manifold approximation and projection. "
    "Journal of Open Source Software 3, 861 (2018).",
    "10.21105/joss.00861",
)
_SCANPY = (
    "Wolf, Angerer and Theis. SCANPY: large-scale single-cell gene expression data analysis. "
    "Genome Biology 19, 15 (2018).",
    "10.1186/s13059-017-1382-0",
)
_GENE_ONTOLOGY = (
    "Ashburner et al. Gene Ontology: tool for the unification of biology. Nature Genetics 25, 25 "
    "(2000).",
    "10.1038/75556",
)
_MODULE = "module: "


def doubt_section(doubts: list[Doubt]) -> Html:
    """Make the section with what may be wrong."""
    shown = [
        element(
            "li",
            element("p", "Check" if doubt.weight == "check" else "Note", class_="weight"),
            element("p", element("strong", doubt.what)),
            element("p", doubt.why),
            element("p", element("em", "What to do: "), doubt.remedy),
            class_=doubt.weight,
        )
        for doubt in doubts
    ]
    nothing = element(
        "p",
        "None of the rules of this page found anything. They look for improbable labels, labels of "
        "few cells, cells that are unlike the reference, and samples that differ; a label can be "
        "wrong without any of these.",
    )
    return section(
        "doubt",
        "What to doubt, and why",
        "What may be wrong with these labels, by fixed rules; what to check comes first.",
        element("ul", *shown, class_="doubts") if shown else nothing,
    )


def methods_section(
    cells: Cells, found: Findings, positions: Positions, model: TOSICA | None
) -> Html:
    """Make the section with a paragraph for a paper, what to cite, and versions.

    Parameters
    ----------
    cells
        The annotation.
    found
        What else the page shows.
    positions
        Where cells are on the map.
    model
        The model, if it was passed.
    """
    sentences = [*_of_labels(cells, model), *_of_rest(cells, found, positions)]
    citations = [_METHOD]
    source = _gene_set_source(model)
    if source.endswith("_gobp"):
        citations.append(_GENE_ONTOLOGY)
    if cells.novelty is not None:
        citations.append(_NOVELTY)
    if found.explanation.source != "attention":
        citations.append(_GRADIENTS)
    if not positions.why_not:
        citations.append(_UMAP)
    citations.append(_SCANPY)
    cited = [
        element("li", f"{text} ", link(f"doi:{doi}", f"https://doi.org/{doi}"))
        for text, doi in citations
    ]
    gene_sets = (
        None
        if source.endswith("_gobp")
        else element(
            "p",
            "Cite the gene sets of the model as well; tosica.gs.collections() lists what to cite "
            "for collections that tosica knows.",
        )
    )
    rows = [
        ("tosica that annotated the cells", str(cells.record.get("version", "not recorded"))),
        ("model (fingerprint)", str(cells.record.get("model", "not recorded"))),
        ("Python", platform.python_version()),
        *((name, installed) for name in _PACKAGES if (installed := _version(name))),
    ]
    return section(
        "methods",
        "Methods and versions",
        "A paragraph for a paper, what to cite, and what this page was made with.",
        element("p", " ".join(sentences), class_="methods", id="methods-paragraph"),
        element("h3", "To cite"),
        element("ul", *cited, class_="methods"),
        gene_sets,
        element("h3", "Versions"),
        table("Model, and packages that made this page", [Column("What"), Column("Version")], rows),
    )


def _of_labels(cells: Cells, model: TOSICA | None) -> list[str]:
    made_by = str(cells.record.get("version", ""))
    modules = sum(name.startswith(_MODULE) for name in cells.gene_sets)
    n_sets = len(cells.gene_sets) - modules
    cutoff = float(cells.record.get("cutoff", 0.0))
    source = _gene_set_source(model)
    from_source = f" of {source}" if source else ""
    plural = "" if modules == 1 else "s"
    of_modules = f" and {count(modules)} module{plural} of co-expressed genes" if modules else ""
    branch = (
        ""
        if model is not None and model.module.linear is None
        else ", to which a linear model on the same gene sets is added"
    )
    of_genes = "" if model is None else f" of {count(len(model.get_var_names()))} genes"
    return [
        f"Labels of {count(cells.n_obs)} cells were predicted with tosica"
        + (f" {made_by}" if made_by else "")
        + f" (model {cells.record.get('model', 'not recorded')}), an implementation of TOSICA "
        f"(Chen et al., 2023): a Transformer whose tokens are gene sets{branch}.",
        f"By the expression{of_genes}, the model tells {count(len(cells.all_labels))} labels "
        f"apart; its tokens are {count(n_sets)} gene sets{from_source}{of_modules}.",
        "Probabilities were calibrated on held-out cells of the reference.",
        f"Cells whose best label had a probability below {decimal(cutoff)} were called “Unknown” "
        f"({count(cells.is_unknown.sum())} cells).",
    ]


def _of_rest(cells: Cells, found: Findings, positions: Positions) -> list[str]:
    sentences = []
    if cells.novelty is not None:
        corrected = (
            ", after correction for what the cells have in common"
            if cells.novelty_is_corrected
            else ""
        )
        sentences.append(
            "Novelty is the distance to the nearest label over genes and in principal components; "
            f"its p-values are conformal (Bates et al., 2023){corrected}."
        )
    if found.explanation.source != "attention":
        sentences.append(
            "Contributions of gene sets and genes are integrated gradients of the label's score "
            "(Sundararajan et al., 2017) and the exact terms of the linear model, compared with "
            "the mean cell of the reference, for genes expressed more than in it."
        )
    if found.markers.found:
        sentences.append(
            "Markers were found by scanpy's t-test of each label against the others on "
            "log-normalised expression."
        )
    if positions.computed:
        sentences.append(
            "The UMAP (McInnes et al., 2018) was computed from the model's attention with scanpy's "
            "defaults."
        )
    return sentences


def _gene_set_source(model: TOSICA | None) -> str:
    """What the mask of the model was built from, if the model was passed."""
    if model is None:
        return ""
    fields = model.registry_["field_registries"]
    source = str(fields.get("mask", {}).get("state_registry", {}).get("source", ""))
    # What has no name is called by its kind.
    return "" if source in ("dict", "table") else source


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
