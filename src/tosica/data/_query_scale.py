"""Recognise a query that is log-normalised in another way than the model's reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.sparse as sp

from tosica._logging import logger
from tosica.data._scale import SAME_TOTAL, Scale, detect_values

if TYPE_CHECKING:
    from tosica.data._cell_matrix import Block, CellMatrix

# Cells are read in chunks spread over the query.
_N_CHUNKS, _CHUNK = 16, 16
# Totals of fewer different cells may agree by accident.
_FEWEST = 8
_LARGEST_COUNT = 1e5
_BASES = {"the natural logarithm": np.e, "log2": 2.0, "log10": 10.0}


class Rescaling(NamedTuple):
    """Bring log-normalised cells of a query to the scale of the reference.

    ``base`` is that of the query's logarithm, ``target_sum`` the total that the model's reference
    was scaled to.
    """

    base: float
    target_sum: float

    def __call__(self, block: Block, first_cell: int, where: str) -> Block:
        """Scale each cell of a block to the total.

        Raises
        ------
        ValueError
            If a cell is scaled otherwise than the cells that were sampled.
        """
        plain = _without_logarithm(block, self.base)
        totals = np.asarray(plain.sum(1)).ravel()
        some = totals > 0
        if some.any() and not _agree(totals[some]):
            cell = first_cell + int(np.abs(totals / np.median(totals[some]) - some).argmax())
            raise ValueError(
                f"{where} holds cells that were scaled to different totals (one is cell {cell}): "
                "normalise all of them alike, or give counts."
            )
        factor = self.target_sum / np.where(some, totals, 1.0)
        scaled = sp.diags(factor) @ plain if sp.issparse(plain) else factor[:, None] * plain
        return np.log1p(scaled).astype(np.float32)


def rescaling(rows: CellMatrix, scale: Scale) -> Rescaling | None:
    """Say how a log-normalised query is brought to the reference's scale; ``None`` if it is not.

    If cells have the same total once the logarithm is undone, that is what they were scaled to. If
    they do not, genes were left out after the normalisation, and the total cannot be known.

    Raises
    ------
    ValueError
        If the query holds fractions without a logarithm, or the logarithm of counts.
    """
    cells = _some_cells(rows)
    try:
        if _n_different(cells) < _FEWEST or detect_values(cells, rows.where) != "log1p":
            return None
    except ValueError:
        # The message comes when the cell is read, and names it.
        return None
    if _agree(np.asarray(cells.sum(1)).ravel()):
        raise ValueError(
            f"{rows.where} holds shares whose sum is the same in all cells, without a logarithm: "
            "give counts, or multiply by 10 000 over the sum and call sc.pp.log1p."
        )
    for name, base in _BASES.items():
        plain = _without_logarithm(cells, base)
        values = plain.data if sp.issparse(plain) else plain
        totals = np.asarray(plain.sum(1)).ravel()
        if _agree(totals):
            total = float(np.median(totals))
            if base == np.e and _agree(np.array([total, scale.target_sum])):
                return None
            if scale.over == "matrix":
                # Genes of the reference were left out after its normalisation.
                return None
            logger.warning(
                "query: cells of %s were scaled to a total of %.6g before %s was taken, those of "
                "the reference to %.6g: they are brought to its scale",
                rows.where,
                total,
                name,
                scale.target_sum,
            )
            return Rescaling(base, scale.target_sum)
        # As exact as single precision is, which does not tell whether large numbers are whole.
        whole = np.abs(values - np.rint(values)) < 1e-3 + 4e-6 * values
        if values.max() < _LARGEST_COUNT and whole.all():
            raise ValueError(
                f"{rows.where} holds the logarithm of counts that were not normalised: give the "
                "counts, or call sc.pp.normalize_total before sc.pp.log1p."
            )
    return None


def _some_cells(rows: CellMatrix) -> Block:
    """Sample cells from all over the query that are not empty."""
    starts = np.unique(np.linspace(0, max(rows.n_obs - _CHUNK, 0), _N_CHUNKS).astype(int))
    chunks = [rows.block(int(i), min(int(i) + _CHUNK, rows.n_obs)) for i in starts]
    cells = sp.vstack(chunks, "csr") if sp.issparse(chunks[0]) else np.concatenate(chunks)
    return cells[np.asarray(cells.sum(1)).ravel() > 0]


def _n_different(cells: Block) -> int:
    """Count the different cells."""
    squares = cells.multiply(cells) if sp.issparse(cells) else cells**2
    return len(np.unique(np.asarray(squares.sum(1)).ravel().round(4)))


def _without_logarithm(block: Block, base: float) -> Block:
    """Undo ``log(1 + x)`` in this base, in double precision."""
    plain = block.astype(np.float64)
    if sp.issparse(plain):
        plain.data = np.expm1(plain.data * np.log(base))
        return plain
    return np.expm1(plain * np.log(base))


def _agree(totals: np.ndarray) -> bool:
    return bool(np.abs(totals / np.median(totals) - 1).max() < SAME_TOTAL)
