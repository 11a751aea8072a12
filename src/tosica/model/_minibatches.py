"""Read minibatches, the next one while the network works on the last."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch

from tosica.module import REGISTRY_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.utils.data import BatchSampler

    from tosica.pp._rows import Block, Rows

    from ._joint_rows import JointRows

# Minibatches that are read before they are asked for.
_AHEAD = 2


class Minibatches:
    """Dense minibatches of a reference, read ahead by a thread.

    Rows are picked, made dense and put beside their labels in another thread than the caller's.
    Which cells come is decided in the caller's, so that random numbers are drawn in one order.

    Parameters
    ----------
    rows
        Expression of the reference.
    codes
        Code of each cell's label, shape ``(n_obs,)``.
    batches
        Positions of the cells of each minibatch.
    """

    def __init__(
        self,
        rows: Rows | JointRows,
        codes: np.ndarray,
        batches: BatchSampler | Sequence[np.ndarray],
    ) -> None:
        self._rows = rows
        self._codes = codes
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        ahead: deque[Future[dict[str, torch.Tensor]]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="tosica-minibatches") as reader:
            for cells in self._batches:
                ahead.append(reader.submit(self._read, np.asarray(cells)))
                if len(ahead) > _AHEAD:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _read(self, cells: np.ndarray) -> dict[str, torch.Tensor]:
        # One lookup a minibatch is much faster on sparse rows than one a cell.
        block: Block = self._rows.take(cells)
        dense = block.toarray() if sp.issparse(block) else block
        return {
            REGISTRY_KEYS.X_KEY: torch.from_numpy(np.asarray(dense, dtype=np.float32)),
            REGISTRY_KEYS.LABELS_KEY: torch.from_numpy(self._codes[cells])[:, None],
        }
