"""What the network is given: names of a minibatch's tensors, and the genes of each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tosica.data import ModalitySlice


class REGISTRY_KEYS:
    """Keys of the fields that ``setup_anndata`` registers."""

    X_KEY: Final = "X"
    LABELS_KEY: Final = "labels"
    BATCH_KEY: Final = "batch"
    MASK_KEY: Final = "mask"


@dataclass(frozen=True, eq=False)
class TokenLayout:
    """Genes and tokens of all modalities, on one gene axis and one token axis.

    Parameters
    ----------
    indptr
        Shape ``(n_tokens + 1,)``. Genes of token ``p`` are ``genes[indptr[p]:indptr[p + 1]]``, as
        in a CSC matrix.
    genes
        Shape ``(n_pairs,)``. Column of each pair's gene in the expression matrix, ascending within
        a token.
    slices
        The modalities: which columns of the expression matrix each has, and how it is normalized.
    modality
        Shape ``(n_tokens,)``. Position of each token's modality in ``slices``.
    no_dropout
        Shape ``(n_tokens,)``, bool. Tokens that token dropout never leaves out.
    names
        Names of the tokens; tokens that are no gene set come last. Empty if nobody needs names.
    var_names
        Names of the genes, ``(n_genes,)``.
    n_unannotated
        Number of tokens that are no gene set, but have every gene of their modality.
    mixed
        Whether a token mixes numbers of several gene sets, as in models of the original code.
    """

    indptr: np.ndarray
    genes: np.ndarray
    slices: tuple[ModalitySlice, ...]
    modality: np.ndarray
    no_dropout: np.ndarray
    names: tuple[str, ...] = ()
    var_names: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=object), repr=False)
    n_unannotated: int = 0
    mixed: bool = False
    # For each pair its position among the pairs of all modalities' masks, one after the other.
    pair_order: np.ndarray | None = field(default=None, repr=False)

    def join_pairs(self, values: Sequence[np.ndarray | None]) -> np.ndarray:
        """Put one value for each pair of gene and token into the order of ``genes``.

        Parameters
        ----------
        values
            For each modality its pairs' values in the order of its mask, or ``None`` if it has no
            values, which become NaN.

        Returns
        -------
        Shape ``(n_pairs,)``, float32.
        """
        pairs_of = np.repeat(self.modality, np.diff(self.indptr))
        parts = [
            np.full((pairs_of == i).sum(), np.nan) if part is None else np.asarray(part)
            for i, part in enumerate(values)
        ]
        joined = np.concatenate(parts).astype(np.float32)
        return joined if self.pair_order is None else joined[self.pair_order]
