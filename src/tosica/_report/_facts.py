"""What the page says: numbers, tables and bars, which ``report.html.j2`` puts into words."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from scipy.stats import false_discovery_control

from tosica._limits import LIMITS
from tosica._obs import ATTRIBUTION, UNKNOWN
from tosica._report._map import MAX_NAMED, MISSING, NOVELTY_RANGE, RAMP, group_palette
from tosica.get import gene_sets_df, genes_df

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tosica._report._map import Positions
    from tosica.model import TOSICA
    from tosica.tl._evidence import Cells, Evidence

# More samples or known labels would make a table that nobody reads.
_MAX_ROWS = 60
# Genes and gene sets of a label that are listed, and the markers that its genes are looked for in.
_N_GENES, _N_GENE_SETS, N_MARKERS = 10, 8, 50
# A label with fewer cells has no markers of its own.
_MIN_CELLS = 5
_PACKAGES = (
    *("tosica", "anndata", "bokeh", "numpy", "pandas", "scanpy", "scikit-learn", "scipy"),
    *("scvi-tools", "torch", "umap-learn"),
)


def label_facts(cells: Cells, colors: list[str]) -> list[dict[str, Any]]:
    """List the labels, the most frequent first and "Unknown" last, with the numbers of each.

    Parameters
    ----------
    cells
        The annotation.
    colors
        Colour of each label.
    """
    order = sorted(range(len(cells.labels)), key=lambda c: (cells.labels[c] == UNKNOWN, -cells.n_cells[c], c))
    largest = cells.n_cells.max()
    facts = []
    for code in order:
        rows = cells.rows(code)
        probability = cells.probability[rows]
        low = probability < LIMITS.probability
        fact = {
            "code": code,
            "name": cells.labels[code],
            "color": colors[code],
            "is_type": cells.labels[code] != UNKNOWN,
            "n": len(rows),
            "share": len(rows) / cells.n_obs,
            "length": len(rows) / largest,
            "median": float(np.median(probability)),
            "lowest_tenth": float(np.quantile(probability, 0.1)),
            "n_low": int(low.sum()),
            "histogram": _histogram(probability, 0, 1),
        }
        if cells.novelty is not None and cells.novelty_pvalue is not None:
            fact["novelty"] = {
                "median": float(np.median(cells.novelty[rows])),
                "n_small": int((cells.novelty_pvalue[rows] <= LIMITS.pvalue).sum()),
                "histogram": _histogram(cells.novelty[rows], *NOVELTY_RANGE),
            }
        facts.append(fact)
    return facts


def _histogram(values: NDArray[np.floating], low: float, high: float) -> list[tuple[int, float]]:
    """Position and height from 0 to 1 of the bars that are not empty.

    Values outside of the range are counted at its ends.
    """
    counts, _ = np.histogram(np.clip(values, low, high), bins=24, range=(low, high))
    largest = max(int(counts.max(initial=0)), 1)
    return [(int(i), float(counts[i] / largest)) for i in np.flatnonzero(counts)]


def summary_facts(cells: Cells) -> dict[str, Any]:
    """Count what the summary and the sections on confidence and novelty say of all cells.

    Parameters
    ----------
    cells
        The annotation.
    """
    agreed = cells.agreement()
    facts: dict[str, Any] = {
        "n_types": len(cells.types),
        "n_unknown": int((cells.predicted == UNKNOWN).sum()),
        "n_low": int((cells.probability < LIMITS.probability).sum()),
        "median": float(np.median(cells.probability)),
        "mean": float(cells.probability.mean()),
        "agreement": None if agreed is None else {"share": agreed[0], "n": agreed[1]},
        "n_small": None,
    }
    if cells.novelty_pvalue is not None:
        facts["n_small"] = int((cells.novelty_pvalue <= LIMITS.pvalue).sum())
        valid = np.clip(cells.novelty_pvalue[np.isfinite(cells.novelty_pvalue)], 0, 1)
        adjusted = false_discovery_control(valid) if len(valid) else valid
        facts["n_significant"] = int((adjusted <= LIMITS.pvalue).sum())
    return facts


def sample_facts(cells: Cells, labels: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Tabulate the share of each label in each sample, in the order of ``labels``.

    Parameters
    ----------
    cells
        The annotation, with samples or without.
    labels
        What :func:`label_facts` returns.
    """
    if cells.samples is None:
        return None
    counts = pd.crosstab(cells.samples, cells.codes)[[label["code"] for label in labels]]
    n = counts.sum(axis=1)
    shown = n.sort_values(ascending=False, kind="stable").index[:_MAX_ROWS]
    rows = [
        {"name": name, "n": int(n[name]), "shares": [float(share) for share in counts.loc[name] / max(n[name], 1)]}
        for name in counts.index
        if name in shown
    ]
    return {"rows": rows, "n_samples": len(counts)}


def known_facts(cells: Cells) -> pd.DataFrame | None:
    """Count the cells of each known label by predicted label.

    Parameters
    ----------
    cells
        The annotation, with known labels or without.
    """
    if cells.known is None or len(cells.known.categories) > _MAX_ROWS:
        return None
    predicted = pd.Categorical.from_codes(cells.codes, pd.Index(cells.labels))
    return pd.crosstab(cells.known, predicted, dropna=False).reindex(
        index=cells.known.categories, columns=cells.labels, fill_value=0
    )


def map_facts(cells: Cells, positions: Positions, labels: list[dict[str, Any]], colors: list[str]) -> dict[str, Any]:
    """Collect what the controls and keys of the map show.

    Parameters
    ----------
    cells
        The annotation.
    positions
        Where which cells are.
    labels
        What :func:`label_facts` returns.
    colors
        Colour of each label.
    """
    drawn = np.bincount(cells.codes[positions.rows], minlength=len(cells.labels))
    keys = []
    for name, groups in (("sample", cells.samples), ("known", cells.known)):
        if groups is None:
            continue
        entries = list(zip(groups.categories, group_palette(cells, colors, name), strict=True))
        keys.append(
            {
                "name": name,
                "entries": entries[:_MAX_ROWS],
                "n_more": len(entries) - _MAX_ROWS,
                "has_none": name == "known" and bool((np.asarray(groups.codes) < 0).any()),
            }
        )
    return {
        "n_drawn": len(positions.rows),
        "choices": [label | {"n": int(drawn[label["code"]])} for label in labels if drawn[label["code"]]],
        "named": len(cells.types) <= MAX_NAMED,
        "keys": keys,
        "missing": MISSING,
        "ramp": ",".join(RAMP),
    }


def type_facts(
    evidence: Evidence,
    contributions: Mapping[str, Any] | None,
    markers: dict[str, pd.DataFrame],
    labels: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Collect the genes, gene sets and markers of each cell type.

    Parameters
    ----------
    evidence
        The annotation, second labels and known markers.
    contributions
        What :func:`tosica.tl.attribute` writes to ``uns``, if it is known.
    markers
        Markers of these cells, by label.
    labels
        What :func:`label_facts` returns.
    """
    genes, gene_sets = pd.DataFrame({"group": []}), pd.DataFrame({"group": []})
    if contributions is not None:
        explained = AnnData(uns={ATTRIBUTION: contributions})
        genes, gene_sets = genes_df(explained), gene_sets_df(explained)
    facts = []
    for label in labels:
        name = label["name"]
        if not label["is_type"]:
            continue
        own = genes[genes["group"] == name]
        added = {} if own.empty else dict(zip(own["gene"], own["contribution"], strict=True))
        known = evidence.known[evidence.known["label"] == name]
        of_cells = markers.get(name, pd.DataFrame({"gene": []}))
        rank_of = {gene: rank for rank, gene in enumerate(of_cells["gene"], start=1)}
        facts.append(
            label
            | {
                "second": evidence.second.get(name),
                "genes": [
                    row | {"rank": rank_of.get(row["gene"])}
                    for row in own[:_N_GENES].to_dict("records")
                    if row["contribution"] > 0
                ],
                "gene_sets": gene_sets[gene_sets["group"] == name][:_N_GENE_SETS].to_dict("records"),
                "markers": of_cells[:_N_GENES].assign(added=of_cells["gene"].map(added)).to_dict("records"),
                "known": known.assign(added=known["gene"].map(added)).to_dict("records"),
            }
        )
    return facts


def find_markers(evidence: Evidence) -> tuple[dict[str, pd.DataFrame], str]:
    """Find the genes that distinguish each label from the others, by scanpy's t-test.

    Parameters
    ----------
    evidence
        The annotation, with the expression of some cells.

    Returns
    -------
    A table for each label with enough cells: ``gene``, ``score``, ``logfoldchange``, and the shares
    of the label's cells and of others that express it (``share``, ``share_others``), from the
    highest score down. Then the reason if there are none.
    """
    if evidence.expression is None:
        return {}, evidence.no_expression
    labels = pd.Series(evidence.cells.predicted[evidence.tested])
    enough = labels.groupby(labels).transform("size").to_numpy() >= _MIN_CELLS
    if labels[enough].nunique() < 2:
        return {}, f"fewer than two labels have {_MIN_CELLS} cells"
    is_ribosomal = evidence.expression.var_names.str.contains(r"^RP(?:[LS]\d+[ALXY]?\d*|LP\d|SA)$", case=False)
    tested = evidence.expression[enough, ~is_ribosomal].copy()
    tested.obs["label"] = pd.Categorical(labels[enough])
    sc.tl.rank_genes_groups(tested, "label", method="t-test", n_genes=N_MARKERS, pts=True)
    table = sc.get.rank_genes_groups_df(tested, group=None)
    table.columns = ["label", "gene", "score", "logfoldchange", "pval", "pval_adj", "share", "share_others"]
    return {str(label): rows for label, rows in table[table["score"] > 0].groupby("label", observed=True)}, ""


def method_facts(cells: Cells, model: TOSICA | None) -> dict[str, Any]:
    """Collect what a paragraph for a paper needs, and the versions.

    Parameters
    ----------
    cells
        The annotation.
    model
        The model, if it was passed.
    """
    gene_sets = [str(name) for name in cells.record["gene_sets"]]
    n_modules = sum(name.startswith("module: ") for name in gene_sets)
    facts: dict[str, Any] = {
        "n_modules": n_modules,
        "n_sets": len(gene_sets) - n_modules,
        "n_genes": None,
        "source": "",
        "has_linear": True,
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }
    if model is not None:
        facts["n_genes"] = sum(len(modality.genes) for modality in model.modalities)
        facts["has_linear"] = model.module.linear is not None
        mask = model.registry_["field_registries"].get("mask", {})
        source = str(mask.get("state_registry", {}).get("source", ""))
        # What has no name is called by its kind.
        facts["source"] = "" if source in ("dict", "table") else source
    return facts


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
