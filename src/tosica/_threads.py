"""Threads that share the work by cells, while torch and BLAS use one thread each.

The threads of OpenMP, with which torch shares a single operation, spin while they wait for one
another. Beside other busy processes this takes many times the processor time of one thread. The
threads here sleep while they wait.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

import torch
from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Pool(threading.local):
    """The pool that a thread has opened; the threads of a pool have none."""

    executor: ThreadPoolExecutor | None = None
    n_threads: int = 1


class _SingleThreadedBLAS:
    """Give BLAS one thread, from the first user's begin to the last one's end.

    The number of threads of BLAS belongs to the process, so that two users at a time must not both
    put it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._limits = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._n_users:
                limits = ThreadpoolController().limit(limits=1, user_api="blas")
                self._limits.enter_context(limits)
            self._n_users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_users -= 1
            if not self._n_users:
                self._limits.close()


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    # A child that is forked has the pool, but not its threads, and would wait for them for ever.
    os.register_at_fork(after_in_child=lambda: vars(_pool).clear())
_single_threaded_blas = _SingleThreadedBLAS()


@contextmanager
def thread_pool(device: torch.device | None = None) -> Iterator[None]:
    """Let :func:`thread_map` use as many threads as torch has, and torch and BLAS one each.

    Afterwards torch and BLAS have as many as before. A pool inside a pool changes nothing, and for
    another device than the CPU there is none.
    """
    if _pool.executor is not None or (device is not None and device.type != "cpu"):
        yield
        return
    _keep_freed_memory()
    with keep_torch_threads(), _single_threaded_blas:
        _pool.n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        executor = ThreadPoolExecutor(
            _pool.n_threads,
            thread_name_prefix="tosica",
            initializer=torch.set_num_threads,
            initargs=(1,),
        )
        _pool.executor = executor
        try:
            yield
        finally:
            _pool.executor, _pool.n_threads = None, 1
            executor.shutdown(cancel_futures=True)


# Names of limits in glibc's malloc.h, and the variable that Dask sets.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_GIVES_BACK = "MALLOC_TRIM_THRESHOLD_"


@cache
def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next operation, once in a process.

    It gives memory back to the system beyond twice the largest block that was freed so far, and
    memory that comes anew from the system is cleared: a third of the time of annotation. A block
    that nothing is written to takes no memory. 32 MB are the most that glibc goes by.

    Workers of Dask have a variable that makes glibc give back freed memory at once, and go by
    nothing. There the same limits are set by name.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)
    if sys.platform == "linux" and _GIVES_BACK in os.environ:
        # Of the C libraries of Linux, only glibc has the function.
        set_limit = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_limit is not None:
            set_limit(_MMAP_THRESHOLD, 2**25)
            set_limit(_TRIM_THRESHOLD, 2**26)


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


def thread_map(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
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
    call = partial(_call, function, _modes())
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            try:
                pending.append(executor.submit(call, item))
            except RuntimeError:  # the interpreter is shutting down and starts no thread
                pending.append(Future())
                pending[-1].set_result(function(item))
            # One more than there are threads, so that no thread waits for the next item.
            if len(pending) > _pool.n_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def _modes() -> tuple[bool, bool, bool, torch.dtype]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


def _call(
    function: Callable[[Item], Result], modes: tuple[bool, bool, bool, torch.dtype], item: Item
) -> Result:
    grad, inference, autocast, dtype = modes
    with (
        torch.inference_mode(inference),
        torch.set_grad_enabled(grad),
        torch.autocast("cpu", dtype, enabled=autocast),
    ):
        return function(item)
