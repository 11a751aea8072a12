"""Write a page about an annotation, and collect the facts that ``report.html.j2`` puts into words."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scanpy as sc
from anndata import AnnData
from scipy.stats import false_discovery_control

from tosica._files import replace_file, resolve_output
from tosica._limits import LIMITS
from tosica._obs import ATTRIBUTION, LIGHT_GRAY, UNKNOWN, group_colors
from tosica._report._map import (
    MAX_NAMED,
    NOVELTY_RANGE,
    RAMP,
    draw_map,
    find_positions,
    group_palette,
)
from tosica._settings import logger
from tosica._text import argument, call, count, decimal, in_python, percent
from tosica._validate import InstanceOf, Integer, validate_params
from tosica.data import ExpressionSource
from tosica.get import gene_sets_df, genes_df
from tosica.tl._doubts import as_table, judge_labels
from tosica.tl._evidence import Cells, collect_evidence, read_contributions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from tosica._report._map import Positions
    from tosica._types import AnnOrMuData, AnyPath, FloatArray
    from tosica.tl._evidence import Evidence

_SUFFIXES = (".html", ".htm")
# In the record of an annotation: number of cells that those of the page are a sample of.
SAMPLED_FROM = "sampled_from"


@validate_params(
    markers=InstanceOf("a dict of label to genes", Mapping, optional=True),
    seed=Integer(least=0),
)
def report(
    adata: AnnOrMuData,
    path: AnyPath,
    *,
    labels_key: str | None = None,
    sample_key: str | None = None,
    markers: Mapping[str, Iterable[str]] | None = None,
    title: str | None = None,
    layer: str | None = None,
    use_raw: bool = False,
    max_cells: int = 50_000,
    seed: int = 0,
    key: str = "tosica",
) -> Path:
    """Write one HTML page about an annotation, for the biologist who has to judge it.

    The page shows how many cells have which label, how probable the labels are, which cells are
    unlike the reference, a map of the cells to hover, search and filter, for each cell type its
    markers and the genes and gene sets that tell it, if :func:`tosica.tl.attribute` wrote them, what
    to doubt and why, and a paragraph of methods.
    It is a single file that needs no network and sends nothing anywhere. The same data give the
    same bytes. :doc:`/report` describes each section.

    Parameters
    ----------
    adata
        Cells that ``model.annotate`` has annotated, ``(n_obs, n_vars)``, in memory or backed. They
        are not changed. The map takes the UMAP in ``adata.obsm["X_umap"]``. Without one, it is
        computed from the attention, which takes some minutes for 50 000 cells.
    path
        File to write, ending in ``.html`` or ``.htm``.
    labels_key
        Column of ``adata.obs`` with labels that were known before, to compare with.
        Cells without one, or with one that says so, such as "Unassigned", do not count.
    sample_key
        Column of ``adata.obs`` with samples, donors or batches, to compare.
    markers
        Markers that you know: genes of each label, such as ``{"B cell": ["MS4A1", "CD79A"]}``. The
        page says in which label each of them is expressed most.
    title
        Title of the page; by default "Cell type annotation".
    layer, use_raw
        Which matrix of ``adata`` to read, as in :meth:`tosica.TOSICA.annotate`.
    max_cells
        Cells on the map at most. Of more, a random sample is shown that keeps rare labels. All
        tables are of all cells.
    seed
        Seed of the samples and of the UMAP.
    key
        ``key_added`` of ``model.annotate``.

    Returns
    -------
    The path of the page.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    KeyError
        If ``adata`` was not annotated under ``key``, a column or layer is missing, or ``markers``
        names a label that the model does not have.
    ValueError
        If ``path`` has another suffix, there are no cells, cells have no label, sample or
        probability, or ``max_cells`` is less than 1.
    FileNotFoundError
        If the folder to write to does not exist.
    OSError
        If the file cannot be written. What was there before is unchanged.

    See Also
    --------
    tosica.tl.attribute : what genes and gene sets add, stored in the data.
    tosica.tl.novelty : novelty, corrected for the shift shared by all cells.

    Examples
    --------
    With a trained model and a query that it annotated:

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import tosica
    >>> with TemporaryDirectory() as folder:
    ...     path = tosica.report(query, Path(folder) / "report.html")
    ...     path.stat().st_size < 5_000_000
    True
    """
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise ValueError(
            f"path must end in {' or '.join(_SUFFIXES)}, not {str(target)!r}."
        )
    resolve_output(target)
    if target.is_dir():
        raise IsADirectoryError(
            f"path is the folder {str(target)!r}, and must be a file."
        )
    source = ExpressionSource(adata, layer, use_raw)
    cells = Cells(adata, key, labels_key=labels_key, sample_key=sample_key)
    evidence = collect_evidence(source, cells, markers, seed)
    color_of = group_colors(adata, f"{key}_prediction")
    colors = [color_of[label] for label in cells.labels]
    contributions = read_contributions(adata, cells)
    markers_of, no_markers = find_markers(evidence)
    positions = find_positions(adata, cells, max_cells, seed)
    labels = label_facts(cells, colors)
    checks = as_table(evidence, contributions)
    if positions.why_not:
        bokeh, map_data = "", ""
    else:
        names = adata.obs_names.astype(str)
        bokeh, map_data = draw_map(cells, positions, names, colors)
    page = _fill_template(
        title="Cell type annotation" if title is None else title,
        cells=cells,
        sampled_from=cells.record.get(SAMPLED_FROM),
        limits=LIMITS,
        novelty_range=NOVELTY_RANGE,
        summary=summary_facts(cells),
        labels=labels,
        levels=level_facts(cells),
        verdicts=judge_labels(cells).to_dict("index"),
        samples=sample_facts(cells, labels),
        known=known_facts(cells),
        positions=positions,
        map=map_facts(cells, positions, labels, colors),
        contributions=contributions,
        n_tested=len(evidence.tested),
        no_markers=no_markers,
        n_markers=N_MARKERS,
        has_known_markers=bool(markers),
        types=type_facts(evidence, contributions, markers_of, labels),
        doubts=checks.to_dict("records"),
        methods=method_facts(cells),
        bokeh=bokeh,
        map_data=map_data,
    )
    with replace_file(target) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    logger.info("report: wrote %s (%.1f MB)", target, len(page.encode()) / 1e6)
    return target


def _fill_template(**facts: Any) -> str:
    """Put facts into the template, which escapes all but the files of this package."""
    from jinja2 import Environment, StrictUndefined

    folder = files("tosica._report")
    page = folder.joinpath("report.html.j2").read_text(encoding="utf-8")
    css = folder.joinpath("page.css").read_text(encoding="utf-8")
    map_js = folder.joinpath("map.js").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {"count": count, "percent": percent, "decimal": decimal}
    environment.globals |= {"argument": argument, "call": call, "in_python": in_python}
    template = environment.from_string(page)
    return template.render(css=css, map_js=map_js, **facts) + "\n"


# ------------------------------------------------------------------------------- facts


# More samples or known labels would make a table that nobody reads.
_MAX_ROWS = 60
# Genes and gene sets of a label that are listed.
_N_GENES = 10
_N_GENE_SETS = 8
# Markers of a label that its genes are looked for in.
N_MARKERS = 50
# A label with fewer cells has no markers of its own.
_MIN_CELLS = 5
# Values up to which dense cells are tested within .1 s; the loops for sparse ones are compiled first, for 2 s.
_MAX_DENSE = 2_000_000
_PACKAGES = (
    "tosica",
    "anndata",
    "bokeh",
    "numpy",
    "pandas",
    "scanpy",
    "scikit-learn",
    "scipy",
    "scvi-tools",
    "torch",
    "umap-learn",
)


def label_facts(cells: Cells, colors: list[str]) -> list[dict[str, Any]]:
    """List the labels, the most frequent first and "Unknown" last, with the numbers of each.

    Parameters
    ----------
    cells
        The annotation.
    colors
        Color of each label.
    """

    def position(code: int) -> tuple[bool, int, int]:
        return cells.labels[code] == UNKNOWN, -cells.n_cells[code], code

    order = sorted(range(len(cells.labels)), key=position)
    largest = cells.n_cells.max()
    facts = []
    for code in order:
        rows = np.flatnonzero(cells.codes == code)
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


def _histogram(values: FloatArray, low: float, high: float) -> list[tuple[int, float]]:
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
    facts: dict[str, Any] = {
        "n_types": len(cells.types),
        "n_unknown": int((cells.predicted == UNKNOWN).sum()),
        "n_low": int((cells.probability < LIMITS.probability).sum()),
        "median": float(np.median(cells.probability)),
        "agreement": cells.agreement(),
        "n_small": None,
    }
    if cells.novelty_pvalue is not None:
        facts["n_small"] = int((cells.novelty_pvalue <= LIMITS.pvalue).sum())
        valid = np.clip(cells.novelty_pvalue[np.isfinite(cells.novelty_pvalue)], 0, 1)
        adjusted = false_discovery_control(valid) if len(valid) else valid
        facts["n_significant"] = int((adjusted <= LIMITS.pvalue).sum())
    return facts


def level_facts(cells: Cells) -> list[dict[str, Any]]:
    """List the groups of each broader level, the most frequent first, with the labels of their cells.

    Parameters
    ----------
    cells
        The annotation, by a model of labels of several levels or of one.
    """
    facts = []
    for key, (groups, probability) in cells.levels.items():
        table = pd.DataFrame({"probability": probability, "label": cells.predicted})
        grouped = table.groupby(np.asarray(groups), sort=True)
        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "n": len(members),
                "median": float(members["probability"].median()),
                "labels": members["label"].value_counts().index.to_list(),
            }
            for name, members in grouped
        ]
        rows.sort(key=lambda row: (row["name"] == UNKNOWN, -row["n"]))
        facts.append({"key": key, "groups": rows})
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
    codes = [label["code"] for label in labels]
    counts = pd.crosstab(cells.samples, cells.codes)[codes]
    n_cells = counts.sum(axis=1)
    largest = n_cells.sort_values(ascending=False, kind="stable").index[:_MAX_ROWS]
    rows = []
    for name in counts.index:
        if name in largest:
            shares = counts.loc[name] / max(n_cells[name], 1)
            rows.append(
                {"name": name, "n": int(n_cells[name]), "shares": shares.to_list()}
            )
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


def map_facts(
    cells: Cells, positions: Positions, labels: list[dict[str, Any]], colors: list[str]
) -> dict[str, Any]:
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
        Color of each label.
    """
    n_on_map = np.bincount(cells.codes[positions.rows], minlength=len(cells.labels))
    keys = []
    for name, groups in (("sample", cells.samples), ("known", cells.known)):
        if groups is None:
            continue
        palette = group_palette(cells, colors, name)
        entries = list(zip(groups.categories, palette, strict=True))
        is_missing = np.asarray(groups.codes) < 0
        keys.append(
            {
                "name": name,
                "entries": entries[:_MAX_ROWS],
                "n_more": len(entries) - _MAX_ROWS,
                "has_none": name == "known" and bool(is_missing.any()),
            }
        )
    return {
        "n_drawn": len(positions.rows),
        "choices": [
            label | {"n": int(n_on_map[label["code"]])}
            for label in labels
            if n_on_map[label["code"]]
        ],
        "named": len(cells.types) <= MAX_NAMED,
        "keys": keys,
        "missing": LIGHT_GRAY,
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
    if contributions is None:
        genes = gene_sets = pd.DataFrame({"group": []})
    else:
        explained = AnnData(uns={ATTRIBUTION: contributions})
        genes = genes_df(explained)
        gene_sets = gene_sets_df(explained)
    facts = []
    for label in labels:
        if not label["is_type"]:
            continue
        name = label["name"]
        of_label = {
            "second": evidence.cells.second.get(name),
            "gene_sets": gene_sets[gene_sets["group"] == name][:_N_GENE_SETS].to_dict(
                "records"
            ),
        }
        contribution = {}
        of_genes = genes[genes["group"] == name]
        if not of_genes.empty:
            contribution = dict(
                zip(of_genes["gene"], of_genes["contribution"], strict=True)
            )
        own_markers = markers.get(name, pd.DataFrame({"gene": []}))
        rank_of = {gene: rank for rank, gene in enumerate(own_markers["gene"], start=1)}
        of_label["genes"] = [
            row | {"rank": rank_of.get(row["gene"])}
            for row in of_genes[:_N_GENES].to_dict("records")
            if row["contribution"] > 0
        ]
        known_markers = evidence.known[evidence.known["label"] == name]
        for field, table, column in (
            ("markers", own_markers[:_N_GENES], "gene"),
            ("known", known_markers, "name"),
        ):
            table = table.assign(added=table[column].map(contribution))
            of_label[field] = table.to_dict("records")
        facts.append(label | of_label)
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
    is_ribosomal = evidence.expression.var_names.str.contains(
        r"^RP(?:[LS]\d+[ALXY]?\d*|LP\d|SA)$", case=False
    )
    tested = evidence.expression[enough, ~is_ribosomal].copy()
    if tested.n_obs * tested.n_vars <= _MAX_DENSE:
        tested.X = tested.X.toarray()
    tested.obs["label"] = pd.Categorical(labels[enough])
    sc.tl.rank_genes_groups(
        tested, "label", method="t-test", n_genes=N_MARKERS, pts=True
    )
    table = sc.get.rank_genes_groups_df(tested, group=None)
    table.columns = [
        "label",
        "gene",
        "score",
        "logfoldchange",
        "pval",
        "pval_adj",
        "share",
        "share_others",
    ]
    higher = table[table["score"] > 0].groupby("label", observed=True)
    return {str(label): rows for label, rows in higher}, ""


def method_facts(cells: Cells) -> dict[str, Any]:
    """Collect what a paragraph for a paper needs of an annotation, and the versions."""
    versions = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    gene_sets = [str(name) for name in cells.record["gene_sets"]]
    # What has no name is called by its kind.
    source = str(cells.record.get("source", ""))
    n_modules = sum(name.startswith("module: ") for name in gene_sets)
    return {
        "n_modules": n_modules,
        "n_sets": len(gene_sets) - n_modules,
        "n_genes": int(cells.record.get("n_genes", 0)),
        "source": "" if source in ("dict", "table") else source,
        # Annotations of before the record said so are by models that have and are both.
        "has_linear": bool(cells.record.get("has_linear", True)),
        "is_calibrated": bool(cells.record.get("is_calibrated", True)),
        "python": platform.python_version(),
        "versions": versions,
    }
