"""The probability below which a cell is called "Unknown"."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from tosica._logging import logger
from tosica._validation import check_fraction

Cutoff: TypeAlias = float | Literal["auto"]

# That of the paper. It has no effect with ten labels or fewer.
DEFAULT_CUTOFF = 0.1


def check_cutoff(cutoff: Any) -> None:
    """Refuse what is neither a number from 0 to 1 nor ``"auto"``.

    Raises
    ------
    TypeError, ValueError
        If it is anything else.
    """
    if isinstance(cutoff, str):
        if cutoff != "auto":
            raise TypeError(f"cutoff must be a number, not {cutoff!r:.60}, or 'auto'.")
        return
    check_fraction("cutoff", cutoff)


def resolve_cutoff(cutoff: Cutoff, n_labels: int) -> float:
    """Turn a cutoff into a number.

    The best of ``n_labels`` labels has a probability of at least ``1 / n_labels``. ``"auto"`` is
    halfway between this and 1.

    Parameters
    ----------
    cutoff
        A number from 0 to 1, or ``"auto"``.
    n_labels
        Number of labels of the model.

    Examples
    --------
    >>> resolve_cutoff("auto", 2), resolve_cutoff("auto", 10), resolve_cutoff(0.3, 10)
    (0.75, 0.55, 0.3)
    """
    return (1 + 1 / n_labels) / 2 if cutoff == "auto" else float(cutoff)


def warn_of_cutoff(cutoff: Cutoff, n_labels: int) -> None:
    """Say in the log if a cutoff that was chosen calls no cell "Unknown"."""
    if cutoff == "auto" or cutoff in (DEFAULT_CUTOFF, 0) or cutoff > 1 / n_labels:
        return
    logger.warning(
        'annotate: cutoff=%g calls no cell "Unknown", because the best of %d labels always has a '
        "probability of at least %.3g: pass a higher one, or cutoff='auto', which is %.3g here",
        cutoff,
        n_labels,
        1 / n_labels,
        resolve_cutoff("auto", n_labels),
    )
