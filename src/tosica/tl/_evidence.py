"""What an annotation can be judged by: the cells, their genes and known markers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from tosica._checks import CellData, Flag, Names, String, as_names
from tosica._obs import UNKNOWN, read_attention, read_groups, read_labels, read_numbers
from tosica._settings import only_warnings, query_logger
from tosica._text import did_you_mean, list_names
from tosica.data import ExpressionSource, LogNormalization, detect_values
from tosica.model._tosica import MODEL

if TYPE_CHECKING:
    from anndata import AnnData
    from mudata import MuData
    from numpy.typing import NDArray

    from tosica.model import TOSICA

# What functions take that run the model on cells that it annotated.
ANNOTATED_BY_MODEL = {
    "adata": CellData(),
    "model": MODEL,
    "layer": String(optional=True),
    "use_raw": Flag(),
    "key": String(),
    "copy": Flag(),
}


def refuse_mudata(model: TOSICA) -> None:
    """Raise a ``ValueError`` for models of several modalities."""
    names = [str(modality.name) for modality in model.modalities]
    if model.modalities[0].name is not None:
        raise ValueError(
            f"The model was set up with a MuData ({list_names(names)}), and this function takes models of an AnnData "
            f"only: train a model of one modality, as by TOSICA.setup_anndata(mdata[{names[0]!r}], ...)."
        )


def check_annotated_by(
    adata: AnnData | MuData, model: TOSICA, key: str, *, mudata: bool = False
) -> None:
    """Refuse cells that another model annotated.

    Parameters
    ----------
    adata
        Annotated query.
    model
        The model that annotated it.
    key
        ``key_added`` of ``model.annotate``.
    mudata
        Accept a model of several modalities.

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`~tosica._obs.read_attention`.
    RuntimeError
        If the model is not trained.
    ValueError
        If the model has several modalities, or another model annotated ``adata``.
    """
    if not mudata:
        refuse_mudata(model)
    model._check_trained()
    read_attention(adata, key)
    written_by = str(adata.uns[key].get("model", ""))
    if written_by != model.fingerprint:
        of = (
            f"a model with the fingerprint {written_by!r}"
            if written_by
            else "an unknown model"
        )
        raise ValueError(
            f"adata.uns[{key!r}] was written by {of}, and this model's is {model.fingerprint!r}: "
            f"pass the model that annotated adata, or run model.annotate(adata, "
            f"key_added={key!r}) with this one."
        )


# Cells of a label that its markers are looked for in.
_N_TESTED = 200


class Cells:
    """The cells of an annotated AnnData, which is not changed.

    ``labels`` are those that occur, "Unknown" too, ``codes`` the position of each cell's label in
    them, ``(n_obs,)``, ``predicted`` its name, ``n_cells`` how many each label has, ``types`` the
    positions of those that are cell types, and ``all_labels`` those of the model. ``record`` is what
    ``model.annotate`` wrote to ``uns``. ``second`` is the second best label of each label's cells and
    its mean probability in them. ``probability``, ``novelty`` and ``novelty_pvalue`` are
    ``(n_obs,)``; ``is_corrected`` says that :func:`tosica.tl.novelty` wrote the novelty. ``samples``
    and ``known``, the labels that were known before, are there if the caller named their columns.

    Parameters
    ----------
    adata
        The annotated cells.
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

    def __init__(
        self,
        adata: AnnData,
        key: str,
        *,
        labels_key: str | None = None,
        sample_key: str | None = None,
    ) -> None:
        read_attention(adata, key)
        prediction = read_groups(adata, f"{key}_prediction")
        self.probability = read_numbers(adata, f"{key}_probability")
        if not ((self.probability >= 0) & (self.probability <= 1)).all():
            raise ValueError(
                f"adata.obs['{key}_probability'] holds values that are missing (NaN) or not between 0 "
                f"and 1: run model.annotate(adata, key_added={key!r}) again."
            )
        self.key, self.sample_key, self.labels_key = key, sample_key, labels_key
        self.labels: list[str] = list(prediction.categories)
        self.codes = np.asarray(prediction.codes, dtype=np.int64)
        self.n_obs, self.n_cells = (
            len(self.codes),
            np.bincount(self.codes, minlength=len(self.labels)),
        )
        self.predicted = np.array(self.labels, dtype=object)[self.codes]
        self.types = [
            code for code, label in enumerate(self.labels) if label != UNKNOWN
        ]
        self.all_labels = read_labels(adata, key) or [
            label for label in self.labels if label != UNKNOWN
        ]
        self.record: Mapping[str, Any] = adata.uns[key]
        seconds = (
            self.record.get(f"second_{what}", ()) for what in ("label", "probability")
        )
        named = zip(self.all_labels, *seconds, strict=False)
        self.second = {
            label: (str(second), float(mean)) for label, second, mean in named if second
        }
        scores = [f"{key}_novelty", f"{key}_novelty_pvalue"]
        has_novelty = all(name in adata.obs for name in scores)
        self.novelty, self.novelty_pvalue = [
            read_numbers(adata, name) if has_novelty else None for name in scores
        ]
        self.is_corrected = f"{key}_novelty_cluster" in adata.obs
        self.samples = (
            None
            if sample_key is None
            else read_groups(adata, sample_key, name="sample_key")
        )
        self.known = None
        if labels_key is not None:
            self.known = read_groups(
                adata, labels_key, name="labels_key", allow_missing=True
            )

    def by_type(self, values: NDArray[Any]) -> Any:
        """Group values of the cells, ``(n_obs,)``, by cell type."""
        is_type = self.predicted != UNKNOWN
        return pd.Series(values[is_type]).groupby(self.predicted[is_type])

    def agreement(self) -> tuple[float, int] | None:
        """Share of the cells with a label of the model that got it, and how many these are."""
        if self.known is None:
            return None
        known = np.array([*self.known.categories, ""], dtype=object)[self.known.codes]
        comparable = np.isin(known, self.all_labels)
        if not comparable.any():
            return None
        return float((self.predicted == known)[comparable].mean()), int(
            comparable.sum()
        )


@dataclass(frozen=True)
class Evidence:
    """What an annotation can be judged by.

    ``tested`` are the positions of the cells of ``expression``, which is log-normalized;
    ``no_expression`` is the reason if there is none. ``known`` has the caller's markers: ``label``,
    ``gene``, the label that it is ``highest_in``, empty if the data lack it, and the ``share`` of the
    label's cells that express it.
    """

    cells: Cells
    tested: NDArray[np.int64]
    expression: AnnData | None
    no_expression: str
    known: pd.DataFrame


def collect_evidence(
    source: ExpressionSource, cells: Cells, markers: Mapping[str, Any] | None, seed: int
) -> Evidence:
    """Ask the expression about an annotation.

    Parameters
    ----------
    source
        The annotated cells, and which of their matrices to read.
    cells
        Their annotation.
    markers, seed
        As in :func:`tosica.tl.check`.

    Raises
    ------
    KeyError, TypeError, ValueError
        As :func:`tosica.tl.check`.
    """
    wanted = [
        (label, gene)
        for label, genes in (markers or {}).items()
        for gene in _names_of(label, genes, cells)
    ]
    rng = np.random.default_rng(seed)
    tested = draw_cells(
        cells.codes, _N_TESTED * len(cells.labels), rng, least=_N_TESTED
    )
    tested = tested[cells.predicted[tested] != UNKNOWN]
    expression, why_not = _log_expression(source, tested)
    known = _known_markers(
        expression,
        cells.predicted[tested],
        pd.DataFrame(wanted, columns=["label", "gene"]),
    )
    return Evidence(cells, tested, expression, why_not, known)


def read_contributions(adata: AnnData, cells: Cells) -> Mapping[str, Any] | None:
    """Read what :func:`tosica.tl.attribute` wrote for these labels; ``None`` if it did not."""
    record = adata.uns.get(f"{cells.key}_attribution")
    wanted = {
        "model": cells.record.get("model"),
        "groupby": f"{cells.key}_prediction",
        "target": "own label",
    }
    is_own = isinstance(record, Mapping) and all(
        str(record.get(name)) == str(wanted[name]) for name in wanted
    )
    return record if is_own else None


@contextmanager
def ask_quietly() -> Iterator[None]:
    """Suppress what ``annotate`` has said before, as of genes that are missing."""
    with only_warnings(query_logger), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def draw_cells(
    codes: NDArray[np.integer], most: int, rng: np.random.Generator, *, least: int
) -> NDArray[np.int64]:
    """Draw cells at random so that rare labels keep theirs.

    Parameters
    ----------
    codes
        Label of each cell, ``(n_obs,)``.
    most
        Cells to draw.
    rng
        Source of the draw.
    least
        Cells that each label keeps, or all that it has; fewer if labels are too many for that.

    Returns
    -------
    Positions in ascending order, ``(min(n_obs, most),)``.
    """
    drawn = rng.permutation(len(codes))
    among_own = pd.Series(codes[drawn]).groupby(codes[drawn]).cumcount().to_numpy()
    is_extra = among_own >= min(least, most // len(np.unique(codes)))
    return np.sort(drawn[np.argsort(is_extra, kind="stable")[:most]])


def _names_of(label: str, genes: Any, cells: Cells) -> list[str]:
    """List the markers of a label, each once."""
    if label not in cells.all_labels:
        raise KeyError(
            f"markers names {label!r}, which is no label of the annotation{did_you_mean(str(label), cells.all_labels)}"
        )
    Names().check(f"markers[{label!r}]", genes)
    return list(dict.fromkeys(as_names(genes)))


def _log_expression(
    source: ExpressionSource, rows: NDArray[np.int64]
) -> tuple[AnnData | None, str]:
    """Log-normalized expression of some cells, or why there is none."""
    if not len(rows):
        return None, "no cell has a label"
    if not isinstance(source.data, ad.AnnData):
        return (
            None,
            "the cells have several modalities; pass one of them for its markers",
        )
    try:
        matrix = source.matrix()
        block = matrix.take(rows)
        values = detect_values(block, matrix.where)
    except (ValueError, TypeError) as error:
        if source.layer is not None or source.use_raw:
            raise
        return (
            None,
            f"{str(error).rstrip('.')}; name unscaled expression with layer= or use_raw=True",
        )
    if values is None:
        return (
            None,
            f"{matrix.where} is zero in all cells; name unscaled expression with layer= or use_raw=True",
        )
    block = sp.csr_matrix(block, dtype=np.float32)
    if values == "counts":
        block = LogNormalization().normalize_block(block)
    names = ad.utils.make_index_unique(pd.Index(matrix.names.astype(str)))
    return ad.AnnData(sp.csr_matrix(block), var=pd.DataFrame(index=names)), ""


def _known_markers(
    expression: AnnData | None, predicted: NDArray[np.object_], wanted: pd.DataFrame
) -> pd.DataFrame:
    """Find in which label each known marker is expressed most."""
    if expression is None or wanted.empty:
        return wanted[:0].assign(highest_in="", share=np.nan)
    genes = expression.var_names.intersection(wanted["gene"])
    measured = expression[:, genes].to_df()
    means, shares = (
        measured.groupby(predicted).mean(),
        (measured > 0).groupby(predicted).mean(),
    )
    highest = means.idxmax().where(means.max() > 0, "none")
    share = shares.unstack().reindex(
        pd.MultiIndex.from_frame(wanted[["gene", "label"]])
    )
    return wanted.assign(
        highest_in=wanted["gene"].map(highest).fillna(""), share=share.to_numpy()
    )
