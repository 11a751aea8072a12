"""Parameters of a gene set mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from tosica._validation import check_choice, check_count, check_fraction, check_string
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
        check_count("max_gene_sets", self.max_gene_sets, optional=True)
        check_count("n_unannotated", self.n_unannotated, least=0)
        check_count("seed", self.seed, least=0)
        if self.max_genes < self.min_genes:
            raise ValueError(
                f"max_genes ({self.max_genes}) must not be below min_genes ({self.min_genes})."
            )
        check_fraction("mask_ratio", self.mask_ratio, zero=False)
        if self.max_jaccard is not None:
            check_fraction("max_jaccard", self.max_jaccard, zero=False)
        check_choice("select", self.select, get_args(Select))
        check_choice("identifiers", self.identifiers, get_args(Identifiers))
        check_choice("organism", self.organism, ("auto", *ORGANISMS))
        check_string("layer", self.layer, optional=True)

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
