"""Parameters of a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Identifiers: TypeAlias = Literal["auto", "exact"]


@dataclass(frozen=True)
class MaskParams:
    """Parameters of one mask, see :func:`tosica.pp.build_mask`."""

    min_genes: int
    max_genes: int
    max_gene_sets: int | None
    max_jaccard: float | None
    organism: str
    identifiers: Identifiers
    # Name of the gene sets instead of their own source.
    source: str = ""

    def stored(self, max_jaccard: float) -> dict[str, Any]:
        """Return them as files hold them, with the ``max_jaccard`` that was used.

        Files cannot hold None, so 0 stands for no limit of ``max_gene_sets``.
        """
        return {
            "min_genes": int(self.min_genes),
            "max_genes": int(self.max_genes),
            "max_gene_sets": int(self.max_gene_sets or 0),
            "max_jaccard": float(max_jaccard),
            "identifiers": self.identifiers,
        }
