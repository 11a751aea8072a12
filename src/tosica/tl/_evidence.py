"""What an annotation can be judged by: the cells, their second labels, genes and known markers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._checks import did_you_mean
from tosica._obs import (
    UNKNOWN,
    missing_column,
    read_attention,
    read_groups,
    read_labels,
    read_numbers,
)
from tosica._settings import only_warnings, query_logger
from tosica.data import (
    TARGET_SUM,
    ExpressionSource,
    detect_values,
    log_normalize_block,
)
from tosica.tl._read_annotation import read_annotation

if TYPE_CHECKING:
    from anndata import AnnData
    from numpy.typing import NDArray

    from tosica.model import TOSICA

# Cells of a label that the model is asked about, and that its markers are looked for in.
_N_ASKED, _N_TESTED = 60, 200


@dataclass(frozen=True)
class Cells:
    """The cells of an annotated AnnData.

    ``labels`` are those that occur, "Unknown" too, ``codes`` the position of each cell's label in
    them, ``(n_obs,)``, and ``all_labels`` those of the model. ``record`` is what ``model.annotate``
    wrote to ``uns``. ``probability``, ``novelty`` and ``novelty_pvalue`` are ``(n_obs,)``;
    ``is_corrected`` says that :func:`tosica.tl.novelty` wrote the novelty. ``samples`` and
    ``known``, the labels that were known before, are there if the caller named their columns.
    """

    key: str
    labels: list[str]
    codes: NDArray[np.int64]
    all_labels: list[str]
    gene_sets: list[str]
    record: Mapping[str, Any]
    probability: NDArray[np.float64]
    novelty: NDArray[np.float64] | None
    novelty_pvalue: NDArray[np.float64] | None
    is_corrected: bool
    samples: pd.Categorical | None
    known: pd.Categorical | None
    sample_key: str | None
    labels_key: str | None

    @property
    def n_obs(self) -> int:
        """Number of cells."""
        return len(self.codes)

    @property
    def n_cells(self) -> NDArray[np.int64]:
        """Number of cells of each label, ``(n_labels,)``."""
        return np.bincount(self.codes, minlength=len(self.labels))

    @property
    def is_unknown(self) -> NDArray[np.bool_]:
        """Which cells are called "Unknown", ``(n_obs,)``."""
        return np.array([label == UNKNOWN for label in self.labels])[self.codes]

    @property
    def types(self) -> list[int]:
        """Positions of the labels that are cell types."""
        return [code for code, label in enumerate(self.labels) if label != UNKNOWN]

    def rows(self, code: int) -> NDArray[np.int64]:
        """Find the positions of the cells with a label."""
        return np.flatnonzero(self.codes == code)

    def agreement(self) -> tuple[float, int] | None:
        """Share of the cells with a label of the model that got it, and how many these are."""
        if self.known is None:
            return None
        names = np.array([*self.known.categories, ""], dtype=object)[np.asarray(self.known.codes)]
        comparable = np.isin(names, self.all_labels)
        if not comparable.any():
            return None
        predicted = np.array(self.labels, dtype=object)[self.codes]
        return float((predicted == names)[comparable].mean()), int(comparable.sum())


class Second(NamedTuple):
    """The second best label of a label's cells, and its mean probability in them."""

    label: str
    probability: float


class KnownMarker(NamedTuple):
    """A marker of the caller's: where it is expressed most, and in how many of the label's cells.

    ``highest_in`` and ``share`` are missing if the data lack the gene.
    """

    gene: str
    highest_in: str | None = None
    share: float = float("nan")


@dataclass(frozen=True)
class Evidence:
    """What an annotation can be judged by.

    ``asked`` are the positions of some cells of each cell type, ``tested`` those of the cells of
    ``expression``, which is log-normalized; ``no_expression`` is the reason if there is none.
    ``second`` is by label, if the probabilities of all labels are known, ``missing_genes`` the
    number that the cells lack and that of the model, and ``known`` the caller's markers by label.
    """

    cells: Cells
    asked: list[NDArray[np.int64]]
    tested: NDArray[np.int64]
    expression: AnnData | None
    no_expression: str = ""
    second: dict[str, Second] | None = None
    missing_genes: tuple[int, int] | None = None
    known: dict[str, list[KnownMarker]] = field(default_factory=dict)


def collect_evidence(
    source: ExpressionSource,
    model: TOSICA | None,
    *,
    labels_key: str | None,
    sample_key: str | None,
    markers: Mapping[str, Iterable[str]] | None,
    key: str,
    seed: int,
) -> Evidence:
    """Read an annotation, and ask the model and the expression about it.

    Parameters
    ----------
    source
        The annotated cells, and which of their matrices to read.
    model, labels_key, sample_key, markers, key, seed
        As in :func:`tosica.tl.check`.

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`tosica.tl.check`.
    """
    adata: Any = source.data
    if model is not None:
        read_annotation(adata, model, key)
    cells = read_cells(adata, key, labels_key=labels_key, sample_key=sample_key)
    wanted = _check_markers(markers, cells.all_labels)
    rng = np.random.default_rng(seed)
    asked = [np.sort(rng.permutation(cells.rows(code))[:_N_ASKED]) for code in cells.types]
    tested = draw_cells(cells.codes, _N_TESTED * len(cells.labels), rng, least=_N_TESTED)
    tested = tested[~cells.is_unknown[tested]]
    expression, why_not = _log_expression(source, tested)
    with ask_quietly():
        return Evidence(
            cells,
            asked,
            tested,
            expression,
            why_not,
            _second_labels(source, cells, model, asked),
            None if model is None else _missing_genes(source, model),
            {} if expression is None else _known_markers(expression, cells, tested, wanted),
        )


@contextmanager
def ask_quietly() -> Iterator[None]:
    """Suppress what ``annotate`` has said before, as of genes that are missing."""
    with only_warnings(query_logger), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def read_cells(adata: AnnData, key: str, *, labels_key: str | None = None, sample_key: str | None = None) -> Cells:
    """Read an annotation, and check that all of it is there.

    Parameters
    ----------
    adata
        The annotated cells, which are not changed.
    key
        ``key_added`` of ``model.annotate``.
    labels_key, sample_key
        Columns of ``adata.obs`` with labels that were known before, and with samples.

    Raises
    ------
    KeyError
        If ``adata`` was not annotated under ``key``, or a column is missing.
    TypeError
        If a column is of the wrong kind.
    ValueError
        If there are no cells, or cells without a label, sample or probability.
    """
    _, gene_sets = read_attention(adata, key)
    prediction = read_groups(adata, f"{key}_prediction")
    if f"{key}_probability" not in adata.obs:
        raise KeyError(missing_column(adata, f"{key}_probability"))
    probability = read_numbers(adata, f"{key}_probability")
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError(
            f"adata.obs['{key}_probability'] holds values that are missing (NaN) or not between 0 "
            f"and 1: run model.annotate(adata, key_added={key!r}) again."
        )
    labels = list(prediction.categories)
    scores = [f"{key}_novelty", f"{key}_novelty_pvalue"]
    has_novelty = all(name in adata.obs for name in scores)
    novelty, pvalue = [read_numbers(adata, name) if has_novelty else None for name in scores]
    samples = known = None
    if sample_key is not None:
        samples = read_groups(adata, sample_key, name="sample_key")
    if labels_key is not None:
        known = read_groups(adata, labels_key, name="labels_key", allow_missing=True)
    return Cells(
        key=key,
        labels=labels,
        codes=np.asarray(prediction.codes, dtype=np.int64),
        all_labels=read_labels(adata, key) or [label for label in labels if label != UNKNOWN],
        gene_sets=gene_sets,
        record=adata.uns[key],
        probability=probability,
        novelty=novelty,
        novelty_pvalue=pvalue,
        is_corrected=f"{key}_novelty_cluster" in adata.obs,
        samples=samples,
        known=known,
        sample_key=sample_key,
        labels_key=labels_key,
    )


def draw_cells(codes: NDArray[np.integer], most: int, rng: np.random.Generator, *, least: int) -> NDArray[np.int64]:
    """Draw cells at random so that rare labels keep theirs.

    Each label keeps ``least`` cells, or all that it has, or its share of ``most`` if labels are
    too many for that. The rest is drawn in proportion to what is left of each label.

    Parameters
    ----------
    codes
        Label of each cell, ``(n_obs,)``.
    most
        Cells to draw.
    rng
        Source of the draw.
    least
        Cells that each label keeps.

    Returns
    -------
    Positions in ascending order, ``(min(n_obs, most),)``.
    """
    if len(codes) <= most:
        return np.arange(len(codes))
    n_cells = np.bincount(codes)
    occurring = np.flatnonzero(n_cells)
    kept = np.minimum(n_cells, min(least, most // len(occurring)))
    left = n_cells - kept
    wanted = (most - kept.sum()) * left / left.sum()
    extra = np.floor(wanted).astype(np.int64)
    # The largest remainders fill up what rounding left over.
    n_missing = int(most - kept.sum() - extra.sum())
    extra[np.argsort(-(wanted - extra), kind="stable")[:n_missing]] += 1
    drawn = [rng.permutation(np.flatnonzero(codes == code))[: kept[code] + extra[code]] for code in occurring]
    return np.sort(np.concatenate(drawn))


def _second_labels(
    source: ExpressionSource,
    cells: Cells,
    model: TOSICA | None,
    asked: list[NDArray[np.int64]],
) -> dict[str, Second] | None:
    """Find the label that the cells of each label would have next; ``None`` if nothing tells."""
    stored = source.data.obsm.get(f"{cells.key}_probabilities")
    if isinstance(stored, pd.DataFrame) and stored.shape[1] == len(cells.all_labels):
        names, every = cells.all_labels, stored.to_numpy(np.float64)
        of_label = [every[cells.codes == code] for code in cells.types]
    elif model is not None and asked:
        table: Any = model.predict(
            source.data,
            np.concatenate(asked).tolist(),
            soft=True,
            layer=source.layer,
            use_raw=source.use_raw,
        )
        names = [str(name) for name in table.columns]
        of_label = np.split(table.to_numpy(np.float64), np.cumsum([*map(len, asked)])[:-1])
    else:
        return None
    found = {}
    for code, probabilities in zip(cells.types, of_label, strict=True):
        means = pd.Series(probabilities.mean(0), names).drop(cells.labels[code], errors="ignore")
        if len(means):
            found[cells.labels[code]] = Second(str(means.idxmax()), float(means.max()))
    return found


def _missing_genes(source: ExpressionSource, model: TOSICA) -> tuple[int, int]:
    """Count the genes of the model that the cells lack, and all genes of the model."""
    # Genes are matched before the first minibatch, which is all that is read.
    first = next(model.iter_batches(source.data, layer=source.layer, use_raw=source.use_raw, batch_size=1))
    measured = first[2]
    return (0 if measured is None else int((~measured).sum())), len(model.get_var_names())


def _check_markers(markers: Any, labels: list[str]) -> dict[str, list[str]]:
    """Check that markers are lists of genes by label."""
    checked: dict[str, list[str]] = {}
    for label, genes in (markers or {}).items():
        if label not in labels:
            raise KeyError(
                f"markers names {label!r}, which is no label of the annotation{did_you_mean(str(label), labels)}"
            )
        named = list(genes) if isinstance(genes, Iterable) and not isinstance(genes, str) else None
        if named is None or not all(isinstance(gene, str) for gene in named):
            raise TypeError(f"the markers of {label!r} must be a list of gene names, not {genes!r}.")
        checked[str(label)] = list(dict.fromkeys(named))
    return checked


def _log_expression(source: ExpressionSource, rows: NDArray[np.int64]) -> tuple[AnnData | None, str]:
    """Log-normalized expression of some cells, or why there is none."""
    if not len(rows):
        return None, "no cell has a label"
    try:
        matrix = source.matrix()
        block = matrix.take(rows)
        values = detect_values(block, matrix.where)
    except (ValueError, TypeError) as error:
        if source.layer is not None or source.use_raw:
            raise
        return None, str(error).rstrip(".")
    if values is None:
        return None, f"{matrix.where} is zero in all cells that were looked at"
    block = sp.csr_matrix(block, dtype=np.float32)
    if values == "counts":
        block = log_normalize_block(block, TARGET_SUM)
    names = matrix.names.astype(str)
    return ad.AnnData(sp.csr_matrix(block), var=pd.DataFrame(index=names)), ""


def _known_markers(
    expression: AnnData, cells: Cells, rows: NDArray[np.int64], wanted: dict[str, list[str]]
) -> dict[str, list[KnownMarker]]:
    """Find in which label each known marker is expressed most."""
    column_of = {name: i for i, name in reversed(list(enumerate(expression.var_names)))}
    labels = np.array(cells.labels, dtype=object)[cells.codes[rows]]

    def look_up(label: str, gene: str) -> KnownMarker:
        if gene not in column_of:
            return KnownMarker(gene)
        values = pd.Series(expression.X[:, column_of[gene]].toarray().ravel())
        means = values.groupby(labels).mean()
        highest = str(means.idxmax()) if means.max() > 0 else "none"
        own = values[labels == label]
        return KnownMarker(gene, highest, float((own > 0).mean()))

    return {label: [look_up(label, gene) for gene in genes] for label, genes in wanted.items()}
