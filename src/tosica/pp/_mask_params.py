"""Parameters of a gene set mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_args

from tosica._validation import check_count
from tosica.gs._gene_table import ORGANISMS
from tosica.gs._match_genes import Identifiers
from tosica.pp._select_gene_sets import Select


@dataclass(frozen=True)
class MaskParams:
    """Parameters of one mask, see :func:`tosica.pp.build_mask`.

    Raises
    ------
    TypeError, ValueError
        If a parameter has the wrong type or is out of range.
    """

    min_genes: int
    max_genes: int
    max_gene_sets: int | None
    n_unannotated: int
    mask_ratio: float
    seed: int
    select: Select
    max_jaccard: float | None
    organism: str
    identifiers: Identifiers
    layer: str | None

    def __post_init__(self) -> None:
        check_count("min_genes", self.min_genes)
        check_count("max_genes", self.max_genes)
        if self.max_gene_sets is not None:
            check_count("max_gene_sets", self.max_gene_sets)
        check_count("n_unannotated", self.n_unannotated, least=0)
        check_count("seed", self.seed, least=0)
        if self.max_genes < self.min_genes:
            raise ValueError(
                f"max_genes ({self.max_genes}) must not be below min_genes ({self.min_genes})."
            )
        _check_share("mask_ratio", self.mask_ratio)
        if self.max_jaccard is not None:
            _check_share("max_jaccard", self.max_jaccard)
        _check_choice("select", self.select, get_args(Select))
        _check_choice("identifiers", self.identifiers, get_args(Identifiers))
        _check_choice("organism", self.organism, ("auto", *ORGANISMS))

    def stored(self, max_jaccard: float) -> dict[str, Any]:
        """Parameters as ``adata.uns`` and files hold them, with the ``max_jaccard`` that was used.

        Files cannot hold None, so 0 stands for no limit of ``max_gene_sets``.
        """
        return {
            "min_genes": int(self.min_genes),
            "max_genes": int(self.max_genes),
            "max_gene_sets": 0 if self.max_gene_sets is None else int(self.max_gene_sets),
            "n_unannotated": int(self.n_unannotated),
            "seed": int(self.seed),
            "mask_ratio": float(self.mask_ratio),
            "max_jaccard": float(max_jaccard),
            "select": self.select,
            "identifiers": self.identifiers,
        }


def _check_share(name: str, share: float) -> None:
    if not isinstance(share, Real):
        raise TypeError(f"{name} must be a number, not {share!r}.")
    if not (math.isfinite(share) and 0 < share <= 1):
        raise ValueError(f"{name} must be above 0 and at most 1, not {share}.")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        *most, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(most)} or {last}, not {value!r}.")
