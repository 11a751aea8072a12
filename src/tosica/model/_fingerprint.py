"""Tell a model from any other, and a damaged one from a whole one."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor


def fingerprint(state: Mapping[str, Tensor], *names: Iterable[str]) -> str:
    """Sixteen characters for weights and what they belong to.

    Parameters
    ----------
    state
        Tensors of the network.
    names
        Labels, genes and gene sets, each in the order of the weights.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for kind in names:
        # A name may hold any other character.
        digest.update("\0".join([*map(str, kind), ""]).encode() + b"\1")
    return digest.hexdigest()[:16]
