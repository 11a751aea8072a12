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
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

import torch
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")


# Types of devices for which autocast may be on.
_DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")


class _Pool(threading.local):
    """Executor that this thread opened; worker threads see ``None``."""

    executor: ThreadPoolExecutor | None = None
    n_threads: int = 1


_pool = _Pool()
# The number of BLAS's threads belongs to the process: the first user sets it, the last puts it back.
_blas_lock = threading.Lock()
_blas_users: set[int] = set()
_blas_limits = ExitStack()
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
    n_threads = torch.get_num_threads()
    user = threading.get_ident()
    with _blas_lock:
        if not _blas_users:
            _blas_limits.enter_context(threadpool_limits(1, user_api="blas"))
        _blas_users.add(user)
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(
            n_threads, "tosica", initializer=torch.set_num_threads, initargs=(1,)
        ) as executor:
            _pool.executor = executor
            _pool.n_threads = n_threads
            yield
    finally:
        _pool.executor = None
        _pool.n_threads = 1
        with _blas_lock:
            _blas_users.discard(user)
            if not _blas_users:
                _blas_limits.close()
        torch.set_num_threads(n_threads)


@contextmanager
def keep_torch_threads() -> Iterator[None]:
    """Restore torch's number of threads.

    numba changes the number for torch, too, when a function that it made parallel is first called.
    """
    n_threads = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != n_threads:
            torch.set_num_threads(n_threads)


def thread_map(
    function: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[Result]:
    """Call a function on each item, on the threads of :func:`thread_pool`.

    Without a pool, or with one thread, the calls are made one after the other. Gradients, inference
    mode and autocast are on or off as for the caller.

    Parameters
    ----------
    function
        Called with one item. Only work that releases Python's global lock gains by several threads.
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
    # A worker inherits none of these modes from its caller.
    grad = torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()
    precisions = [
        (device_type, torch.get_autocast_dtype(device_type))
        for device_type in _DEVICE_TYPES
        if torch.is_autocast_enabled(device_type)
    ]

    def call(item: Item) -> Result:
        with (
            torch.inference_mode(inference),
            torch.set_grad_enabled(grad),
            ExitStack() as stack,
        ):
            for device_type, dtype in precisions:
                stack.enter_context(torch.autocast(device_type, dtype))
            return function(item)

    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            # Nor does it inherit which loggers are quiet.
            pending.append(executor.submit(copy_context().run, call, item))
            # One more than there are threads, so that no thread waits for the next item.
            if len(pending) > _pool.n_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
