"""Gene sets and genes that a label rests on: from the model, or from what the AnnData holds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from tosica._annotated import read_attention
from tosica._statistics import group_moments, standardized_difference
from tosica.tl._read_annotation import read_annotation
from tosica.tl._top_genes import largest_weights, presence_of_groups

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica._report._cells import Cells
    from tosica.model import TOSICA

N_GENE_SETS, N_GENES = 8, 8
# Genes of a label over all of its gene sets, which are compared with its markers.
N_LEADING = 20


@dataclass(frozen=True)
class GeneSet:
    """A gene set of a label, and its genes, each with what it adds to the label's score."""

    name: str
    weight: float
    genes: list[tuple[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Explanation:
    """What the labels rest on.

    ``source`` says where it is from: the model was asked (``"model"``), or the AnnData has results
    of :func:`tosica.tl.top_genes`, of :func:`tosica.tl.attribute`, or only attention. ``gene_sets``
    and ``genes``, the genes that add most over all gene sets, are by label. ``added`` is what each
    gene of the data adds to each label, ``(n_genes, n_labels)``, if that is known. ``error`` is the
    error of the attributions, relative to the scores. ``stale`` names results of another model,
    which were left out.
    """

    source: Literal["model", "top_genes", "attribute", "attention"]
    gene_sets: dict[str, list[GeneSet]]
    genes: dict[str, list[tuple[str, float]]]
    added: pd.DataFrame | None = None
    error: float | None = None
    n_cells: int | None = None
    stale: tuple[str, ...] = ()


def explain(
    adata: AnnData,
    cells: Cells,
    model: TOSICA | None,
    drawn: list[NDArray[np.int64]],
    *,
    layer: str | None,
    use_raw: bool,
) -> Explanation:
    """Find the gene sets and genes of each label.

    Parameters
    ----------
    adata
        The annotated cells.
    cells
        Their annotation.
    model
        The model that annotated them, if there is one.
    drawn
        Positions of some cells of each label that is a cell type, to be explained by the model.
    layer, use_raw
        Which matrix of ``adata`` to read.

    Raises
    ------
    TypeError, ValueError
        If ``model`` is no model, did not annotate ``adata``, or cannot read its expression.
    """
    if model is not None:
        return _by_model(adata, cells, model, drawn, layer=layer, use_raw=use_raw)
    stale: list[str] = []
    found = _of_top_genes(adata, cells, stale) or _of_attribute(adata, cells, stale)
    return found or _of_attention(adata, cells, tuple(stale))


def _by_model(
    adata: AnnData,
    cells: Cells,
    model: TOSICA,
    drawn: list[NDArray[np.int64]],
    *,
    layer: str | None,
    use_raw: bool,
) -> Explanation:
    read_annotation(adata, model, cells.key)
    labels = [cells.labels[code] for code in cells.types]
    if not labels:
        return Explanation("model", {}, {})
    with warnings.catch_warnings():
        # Of genes that are missing, which annotate has warned of, and the page says.
        warnings.simplefilter("ignore", UserWarning)
        sets, pairs = presence_of_groups(adata, model, drawn, layer, use_raw, "report: gene sets")
    rows = largest_weights(model, labels, sets, pairs, N_GENE_SETS, N_GENES)
    names = np.asarray(model.get_var_names()).astype(str)
    of_pair = model.module.embedding.genes.cpu().numpy()
    added = pd.DataFrame(
        {
            label: np.bincount(of_pair, pairs[i].astype(np.float64), minlength=len(names))
            for i, label in enumerate(labels)
        },
        index=names,
    )
    return Explanation(
        "model",
        _gene_sets(rows),
        {label: _leading(added[label]) for label in labels},
        added,
        n_cells=max(map(len, drawn)),
    )


def _of_top_genes(adata: AnnData, cells: Cells, stale: list[str]) -> Explanation | None:
    """Result of :func:`tosica.tl.top_genes` for these labels, if the AnnData has it."""
    result = adata.uns.get("top_genes")
    if not isinstance(result, Mapping) or not {"table", "params"} <= set(result):
        return None
    params = dict(result["params"])
    wanted = {"groupby": f"{cells.key}_prediction", "by": "attribution", "key": cells.key}
    if any(str(params.get(name)) != value for name, value in wanted.items()):
        return None
    rows = result["table"]
    rows = rows[rows["group"].astype(str).isin(cells.labels)]
    attributed = _of_attribute(adata, cells, stale)
    return Explanation(
        "top_genes",
        _gene_sets(rows),
        attributed.genes if attributed else {},
        attributed.added if attributed else None,
        attributed.error if attributed else None,
        stale=tuple(stale),
    )


def _of_attribute(adata: AnnData, cells: Cells, stale: list[str]) -> Explanation | None:
    """Result of :func:`tosica.tl.attribute`, if the AnnData has it for each cell's own label."""
    key, presence_key = f"{cells.key}_attribution", f"{cells.key}_presence"
    record = adata.uns.get(key)
    if not isinstance(record, Mapping) or f"X_{presence_key}" not in adata.obsm:
        return None
    if str(record.get("model")) != str(cells.record.get("model")):
        stale.append(f"adata.uns[{key!r}]")
        return None
    if str(record.get("target", "own label")) != "own label":
        return None
    presence, names = read_attention(adata, presence_key)
    gene_sets = {
        cells.labels[code]: _largest(presence[cells.rows(code)].mean(0, dtype=np.float64), names)
        for code in cells.types
    }
    added = _added(adata, cells, key)
    return Explanation(
        "attribute",
        gene_sets,
        {} if added is None else {str(label): _leading(added[label]) for label in added},
        added,
        float(record["completeness_error"]) if "completeness_error" in record else None,
        stale=tuple(stale),
    )


def _added(adata: AnnData, cells: Cells, key: str) -> pd.DataFrame | None:
    """What each gene adds to each label, as :func:`tosica.tl.attribute` wrote it."""
    if key not in adata.varm:
        return None
    written = pd.DataFrame(adata.varm[key])
    # A slash in a label is a bar in the name of its column.
    column_of = {cells.labels[code]: cells.labels[code].replace("/", "|") for code in cells.types}
    table = {label: written[name] for label, name in column_of.items() if name in written}
    return pd.DataFrame(table, index=adata.var_names.astype(str))


def _of_attention(adata: AnnData, cells: Cells, stale: tuple[str, ...]) -> Explanation:
    attention, names = read_attention(adata, cells.key)
    categories: Any = pd.CategoricalDtype(cells.labels)
    groups = pd.Categorical.from_codes(cells.codes, dtype=categories)
    moments = group_moments(attention, groups)
    gene_sets = {}
    for code in cells.types:
        difference = standardized_difference(moments, code, within="all groups")
        gene_sets[cells.labels[code]] = _largest(difference, names)
    return Explanation("attention", gene_sets, {}, stale=stale)


def n_missing_genes(
    adata: AnnData, model: TOSICA, *, layer: str | None, use_raw: bool
) -> tuple[int, int]:
    """Count the genes of the model that the cells lack, and all genes of the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # Genes are matched before the first minibatch, which is all that is read.
        first = next(model.iter_batches(adata, layer=layer, use_raw=use_raw, batch_size=1))
    measured = first[2]
    return (0 if measured is None else int((~measured).sum())), len(model.get_var_names())


# --------------------------------------------------------------------------- largest weights


def _gene_sets(rows: pd.DataFrame) -> dict[str, list[GeneSet]]:
    """Gene sets of each label, from a table of :func:`tosica.tl.top_genes`."""
    found: dict[str, list[GeneSet]] = {}
    columns = ["group", "gene_set", "gene_set_weight", "gene", "gene_weight"]
    row: Any
    for row in rows[columns].itertuples(index=False, name=None):
        label, name, weight, gene, gene_weight = row
        of_label = found.setdefault(str(label), [])
        if not of_label or of_label[-1].name != str(name):
            of_label.append(GeneSet(str(name), float(weight)))
        of_label[-1].genes.append((str(gene), float(gene_weight)))
    return found


def _largest(weights: NDArray[np.floating], names: list[str]) -> list[GeneSet]:
    order = np.argsort(-weights, kind="stable")[:N_GENE_SETS]
    return [GeneSet(names[i], float(weights[i])) for i in order if weights[i] > 0]


def _leading(weights: pd.Series) -> list[tuple[str, float]]:
    """Genes that add most, in descending order."""
    values = weights.to_numpy(np.float64)
    order = np.argsort(-values, kind="stable")[:N_LEADING]
    return [(str(weights.index[i]), float(values[i])) for i in order if values[i] > 0]
