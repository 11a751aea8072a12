"""What an annotation says of each cell, read from an AnnData and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tosica._annotated import read_attention
from tosica._constants import UNKNOWN
from tosica._groups import missing_column, read_groups, read_labels, read_numbers
from tosica.pl._figure import group_colors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anndata import AnnData
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Cells:
    """The cells of an annotated AnnData."""

    key: str
    """Key of the annotation."""
    names: NDArray[np.object_]
    """Name of each cell, ``(n_obs,)``."""
    labels: list[str]
    """Labels that occur, and "Unknown" if it does."""
    codes: NDArray[np.int64]
    """Position of each cell's label in ``labels``, ``(n_obs,)``."""
    colors: list[str]
    """Colour of each of the labels."""
    all_labels: list[str]
    """All labels of the model; those that occur if the record does not have them."""
    gene_sets: list[str]
    """Gene sets and modules of the model."""
    record: Mapping[str, Any]
    """What ``model.annotate`` wrote to ``uns``."""
    probability: NDArray[np.float64]
    """Probability of each cell's best label, ``(n_obs,)``."""
    novelty: NDArray[np.float64] | None
    """Score of each cell's novelty, ``(n_obs,)``, if there is one."""
    novelty_pvalue: NDArray[np.float64] | None
    """Its p-value, ``(n_obs,)``."""
    novelty_is_corrected: bool
    """Whether :func:`tosica.tl.novelty` wrote it, so that batch effects were looked for."""
    samples: pd.Categorical | None
    """Sample of each cell, if the caller named them."""
    known: pd.Categorical | None
    """Label of each cell that was known before, if the caller named them; -1 is missing."""
    sample_key: str | None
    """Column of ``samples``."""
    labels_key: str | None
    """Column of ``known``."""

    @property
    def n_obs(self) -> int:
        """Number of cells."""
        return len(self.codes)

    @property
    def n_cells(self) -> NDArray[np.int64]:
        """Cells of each label, ``(n_labels,)``."""
        return np.bincount(self.codes, minlength=len(self.labels))

    @property
    def is_unknown(self) -> NDArray[np.bool_]:
        """Which cells are called "Unknown", ``(n_obs,)``."""
        return np.array([label == UNKNOWN for label in self.labels])[self.codes]

    @property
    def types(self) -> list[int]:
        """Positions of the labels that are cell types."""
        return [code for code, label in enumerate(self.labels) if label != UNKNOWN]

    @property
    def by_frequency(self) -> list[int]:
        """Positions of the labels, the most frequent first and "Unknown" last."""
        n_cells = self.n_cells
        return sorted(
            range(len(self.labels)), key=lambda c: (self.labels[c] == UNKNOWN, -n_cells[c], c)
        )

    def rows(self, code: int) -> NDArray[np.int64]:
        """Positions of the cells with a label."""
        return np.flatnonzero(self.codes == code)


def read_cells(
    adata: AnnData, key: str, *, labels_key: str | None, sample_key: str | None
) -> Cells:
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
    if not isinstance(adata.obs, pd.DataFrame):
        raise TypeError("adata was opened without reading it: call adata.to_memory() first.")
    prediction = read_groups(adata, f"{key}_prediction")
    probability = _read(adata, f"{key}_probability")
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError(
            f"adata.obs['{key}_probability'] holds values that are missing (NaN) or not between 0 "
            f"and 1: run model.annotate(adata, key_added={key!r}) again."
        )
    labels = list(prediction.categories)
    colors = group_colors(adata, f"{key}_prediction")
    novelty, pvalue = f"{key}_novelty", f"{key}_novelty_pvalue"
    has_novelty = novelty in adata.obs and pvalue in adata.obs
    record = adata.uns[key]
    return Cells(
        key=key,
        names=np.asarray(adata.obs_names.astype(str), dtype=object),
        labels=labels,
        codes=np.asarray(prediction.codes, dtype=np.int64),
        colors=[colors[label] for label in labels],
        all_labels=read_labels(adata, key) or [label for label in labels if label != UNKNOWN],
        gene_sets=gene_sets,
        record=record,
        probability=probability,
        novelty=_read(adata, novelty) if has_novelty else None,
        novelty_pvalue=_read(adata, pvalue) if has_novelty else None,
        novelty_is_corrected=f"{key}_novelty_cluster" in adata.obs,
        samples=None if sample_key is None else read_groups(adata, sample_key, name="sample_key"),
        known=None
        if labels_key is None
        else read_groups(adata, labels_key, name="labels_key", allow_missing=True),
        sample_key=sample_key,
        labels_key=labels_key,
    )


def _read(adata: AnnData, column: str) -> NDArray[np.float64]:
    if column not in adata.obs:
        raise KeyError(missing_column(adata, column))
    return read_numbers(adata, column)


def draw_cells(
    codes: NDArray[np.integer], most: int, rng: np.random.Generator, *, least: int
) -> NDArray[np.int64]:
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
    drawn = [
        rng.permutation(np.flatnonzero(codes == code))[: kept[code] + extra[code]]
        for code in occurring
    ]
    return np.sort(np.concatenate(drawn))
