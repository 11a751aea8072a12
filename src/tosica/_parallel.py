"""Share the work of many cells among threads, while torch and BLAS use one thread each.

The threads of OpenMP, with which torch shares a single operation, spin while they wait for one
another. Beside other busy processes this takes many times the processor time of one thread. The
threads here sleep while they wait.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")


# Of devices, for which autocast may be on.
_KINDS = ("cpu", "cuda", "mps", "xpu")


class _Pool(threading.local):
    """Executor that this thread opened; worker threads see ``None``."""

    executor: ThreadPoolExecutor | None = None
    n_threads: int = 1


_pool = _Pool()
# The number of BLAS's threads belongs to the process: the first user sets it, the last puts it back.
_blas_lock, _blas_users, _blas_limits = threading.Lock(), set[int](), ExitStack()
if hasattr(os, "register_at_fork"):
    # A forked child has the pool without its threads, and would wait for them for ever.
    os.register_at_fork(after_in_child=lambda: vars(_pool).clear())


@contextmanager
def thread_pool(device: torch.device | None = None) -> Iterator[None]:
    """Let :func:`thread_map` use as many threads as torch has, and torch and BLAS one each.

    Afterwards torch and BLAS have as many as before. A pool inside a pool changes nothing, and for
    another device than the CPU there is none.
    """
    if _pool.executor is not None or (device is not None and device.type != "cpu"):
        yield
        return
    # Once it has seen a freed block of this size, glibc keeps up to twice as much for the next
    # operation; else the system clears memory anew, a third of the time of annotation.
    torch.empty(31 * 2**20, dtype=torch.uint8)
    before, user = torch.get_num_threads(), threading.get_ident()
    with _blas_lock:
        if not _blas_users:
            _blas_limits.enter_context(threadpool_limits(1, user_api="blas"))
        _blas_users.add(user)
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(
            before, "tosica", initializer=torch.set_num_threads, initargs=(1,)
        ) as executor:
            _pool.executor, _pool.n_threads = executor, before
            yield
    finally:
        _pool.executor, _pool.n_threads = None, 1
        with _blas_lock:
            _blas_users.discard(user)
            if not _blas_users:
                _blas_limits.close()
        torch.set_num_threads(before)


@contextmanager
def keep_torch_threads() -> Iterator[None]:
    """Give torch the number of threads that it had before.

    numba changes the number for torch, too, when a function that it made parallel is first called.
    """
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def thread_map(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Call a function on each item, on the threads of :func:`thread_pool`.

    Without a pool, or with one thread, the calls are made one after the other. Gradients, inference
    mode and autocast are on or off as for the caller.

    Parameters
    ----------
    function
        Called with one item. Only what releases Python's global lock gains by several threads.
    items
        Read by the caller's thread, not much faster than results are taken.

    Yields
    ------
    Results, in the order of the items.
    """
    executor = _pool.executor
    if executor is None or _pool.n_threads == 1:
        yield from map(function, items)
        return
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    # A worker has none of these from its caller.
    precisions = [
        (kind, torch.get_autocast_dtype(kind))
        for kind in _KINDS
        if torch.is_autocast_enabled(kind)
    ]

    def call(item: Item) -> Result:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
            ExitStack() as stack,
        ):
            for kind, dtype in precisions:
                stack.enter_context(torch.autocast(kind, dtype))
            return function(item)

    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(executor.submit(call, item))
            # One more than there are threads, so that no thread waits for the next item.
            if len(pending) > _pool.n_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
