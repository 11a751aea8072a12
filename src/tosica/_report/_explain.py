"""Gene sets and genes that a label rests on, and the genes that distinguish its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import scanpy as sc

from tosica._obs import read_attention
from tosica._stats import group_moments, standardized_difference
from tosica.tl._evidence import Cells, Evidence, ask_quietly
from tosica.tl._top_genes import largest_weights, presence_of_groups

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.data import ExpressionSource
    from tosica.model import TOSICA

_N_GENE_SETS, _N_GENES = 8, 8
# Genes of a label over all of its gene sets, which are compared with its markers.
N_LEADING = 20

Gene = tuple[str, float]


class GeneSet(NamedTuple):
    """A gene set of a label, and its genes, each with what it adds to the label's score."""

    name: str
    weight: float
    genes: list[Gene]


@dataclass(frozen=True)
class Explanation:
    """What the labels rest on.

    ``source`` says where it is from: the model was asked (``"model"``), or the AnnData has results
    of :func:`tosica.tl.top_genes`, of :func:`tosica.tl.attribute`, or only attention. ``gene_sets``
    and ``genes``, the genes that add most over all gene sets, are by label. ``added`` is what each
    gene of the data adds to each label, ``(n_genes, n_labels)``, if that is known.
    """

    source: Literal["model", "top_genes", "attribute", "attention"]
    gene_sets: dict[str, list[GeneSet]]
    genes: dict[str, list[Gene]] = field(default_factory=dict)
    added: pd.DataFrame = field(default_factory=pd.DataFrame)


def explain(source: ExpressionSource, evidence: Evidence, model: TOSICA | None) -> Explanation:
    """Find the gene sets and genes of each label.

    Parameters
    ----------
    source
        The annotated cells, and which of their matrices to read.
    evidence
        Their annotation, and the cells of each label that the model is asked about.
    model
        The model that annotated them, if there is one.
    """
    adata: Any = source.data
    cells = evidence.cells
    if model is not None:
        return _by_model(source, evidence, model)
    return _of_top_genes(adata, cells) or _of_attribute(adata, cells) or _of_attention(adata, cells)


def _by_model(source: ExpressionSource, evidence: Evidence, model: TOSICA) -> Explanation:
    labels = [evidence.cells.labels[code] for code in evidence.cells.types]
    if not labels:
        return Explanation("model", {})
    with ask_quietly():
        sets, pairs = presence_of_groups(source, model, evidence.asked, "report: gene sets")
    rows = largest_weights(model, labels, sets, pairs, _N_GENE_SETS, _N_GENES)
    names = np.asarray(model.get_var_names()).astype(str)
    of_pair = model.module.embedding.genes.cpu().numpy()
    added = {
        label: np.bincount(of_pair, pairs[i].astype(np.float64), minlength=len(names)) for i, label in enumerate(labels)
    }
    return _with_genes("model", _gene_sets(rows), pd.DataFrame(added, index=names))


def _of_top_genes(adata: AnnData, cells: Cells) -> Explanation | None:
    """Read what :func:`tosica.tl.top_genes` wrote for these labels."""
    result = adata.uns.get("top_genes")
    if not isinstance(result, Mapping) or not {"table", "params"} <= set(result):
        return None
    wanted = {"groupby": f"{cells.key}_prediction", "by": "attribution", "key": cells.key}
    if any(str(result["params"].get(name)) != value for name, value in wanted.items()):
        return None
    rows = result["table"]
    gene_sets = _gene_sets(rows[rows["group"].astype(str).isin(cells.labels)])
    attributed = _of_attribute(adata, cells)
    added = pd.DataFrame() if attributed is None else attributed.added
    return _with_genes("top_genes", gene_sets, added)


def _of_attribute(adata: AnnData, cells: Cells) -> Explanation | None:
    """Read what :func:`tosica.tl.attribute` wrote for each cell's own label."""
    key, presence_key = f"{cells.key}_attribution", f"{cells.key}_presence"
    record = adata.uns.get(key)
    if not isinstance(record, Mapping) or f"X_{presence_key}" not in adata.obsm:
        return None
    is_of_model = str(record.get("model")) == str(cells.record.get("model"))
    if not is_of_model or str(record.get("target", "own label")) != "own label":
        return None
    presence, names = read_attention(adata, presence_key)
    gene_sets = {
        cells.labels[code]: _largest(presence[cells.rows(code)].mean(0, dtype=np.float64), names)
        for code in cells.types
    }
    written = pd.DataFrame(adata.varm.get(key, pd.DataFrame(index=adata.var_names)))
    # A slash in a label is a bar in the name of its column.
    column_of = {cells.labels[code]: cells.labels[code].replace("/", "|") for code in cells.types}
    table = {label: written[name] for label, name in column_of.items() if name in written}
    added = pd.DataFrame(table, index=adata.var_names.astype(str))
    return _with_genes("attribute", gene_sets, added)


def _of_attention(adata: AnnData, cells: Cells) -> Explanation:
    attention, names = read_attention(adata, cells.key)
    categories: Any = pd.CategoricalDtype(cells.labels)
    moments = group_moments(attention, pd.Categorical.from_codes(cells.codes, dtype=categories))
    gene_sets = {
        cells.labels[code]: _largest(standardized_difference(moments, code, within="all groups"), names)
        for code in cells.types
    }
    return Explanation("attention", gene_sets)


# --------------------------------------------------------------------------- largest weights


def _with_genes(source: Any, gene_sets: dict[str, list[GeneSet]], added: pd.DataFrame) -> Any:
    """Add the genes that add most to each label."""
    genes: dict[str, list[Gene]] = {}
    for label in added:
        largest = added[label].astype(float).sort_values(ascending=False, kind="stable")
        largest = largest[largest > 0][:N_LEADING]
        genes[str(label)] = [(str(gene), float(weight)) for gene, weight in largest.items()]
    return Explanation(source, gene_sets, genes, added)


def _gene_sets(rows: pd.DataFrame) -> dict[str, list[GeneSet]]:
    """Gene sets of each label, from a table of :func:`tosica.tl.top_genes`."""
    found: dict[str, list[GeneSet]] = {}
    columns = ["group", "gene_set", "gene_set_weight"]
    for (label, name, _), part in rows.groupby(columns, sort=False, observed=True):
        weight = float(part["gene_set_weight"].iloc[0])
        genes = zip(part["gene"].astype(str), part["gene_weight"].astype(float), strict=True)
        found.setdefault(str(label), []).append(GeneSet(str(name), weight, list(genes)))
    return found


def _largest(weights: NDArray[np.floating], names: list[str]) -> list[GeneSet]:
    order = np.argsort(-weights, kind="stable")[:_N_GENE_SETS]
    return [GeneSet(names[i], float(weights[i]), []) for i in order if weights[i] > 0]


# --------------------------------------------------------------------------- markers

# Genes that are compared with those that add most to a label.
N_MARKERS = 50
# A label with fewer cells has no markers of its own.
_MIN_CELLS = 5


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
    labels = pd.Series(evidence.cells.labels)[evidence.cells.codes[evidence.tested]]
    enough = labels.groupby(labels).transform("size").to_numpy() >= _MIN_CELLS
    if labels[enough].nunique() < 2:
        return {}, f"fewer than two labels have {_MIN_CELLS} cells"
    tested = evidence.expression[enough].copy()
    tested.var_names_make_unique()
    tested.obs["label"] = pd.Categorical(labels[enough])
    sc.tl.rank_genes_groups(tested, "label", method="t-test", n_genes=N_MARKERS, pts=True)
    table = sc.get.rank_genes_groups_df(tested, group=None).rename(
        columns={
            "names": "gene",
            "scores": "score",
            "logfoldchanges": "logfoldchange",
            "pct_nz_group": "share",
            "pct_nz_reference": "share_others",
        }
    )
    table = table[table["score"] > 0]
    return {str(label): rows for label, rows in table.groupby("group", observed=True)}, ""
