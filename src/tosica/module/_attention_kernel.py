"""Attention on a processor without writing its weights out: forth, back, and one rollout row.

Heads of a gene-set encoder are narrow, so scores are quick to compute and slow to keep: a few rows
of them at a time never leave the processor's nearest cache. All functions take the projection that
``SelfAttention`` computes as it is, and do heads from ``start`` to ``stop``, numbered cell by cell.
"""

from __future__ import annotations

import ctypes
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable

# Wider heads are left to torch: the loops over a head's width are unrolled.
WIDEST = 16
# Queries that are done together, and the multiple that their keys are padded to: a processor adds
# so many numbers at a time, several times over.
_ROWS, _LANES = 4, 32
# Powers of two are quicker than powers of e.
_LOG2_E, _LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
# Scores up to this size can be raised to powers of two and summed as they are.
_SAFE = np.float32(60)
_ZERO, _HALF, _ONE, _LOWEST = (np.float32(value) for value in (0, 0.5, 1, -126))
_SERIES = tuple(np.float32(math.log(2) ** k / math.factorial(k)) for k in range(7))
# Weights to compute for which it is worth to start a thread.
_LEAST = 2**19
# OpenMP's number for a pause after which things go on as before.
_SOFT = 1

# Not all of what is called fast: what is no number has to stay so.
_jit = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath={"reassoc", "contract", "nsz", "arcp"},
)


@nb.njit(nogil=True, cache=True, fastmath={"contract"})
def _exp2(x):  # type: ignore[no-untyped-def]
    """Two to the power of x, or of -126 if x is less; x is at most 128."""
    x = max(x, _LOWEST)
    whole = np.floor(x + _HALF)
    rest = x - whole
    y = _SERIES[6]
    y = y * rest + _SERIES[5]
    y = y * rest + _SERIES[4]
    y = y * rest + _SERIES[3]
    y = y * rest + _SERIES[2]
    y = y * rest + _SERIES[1]
    y = y * rest + _ONE
    exponent = (np.int32(whole) + np.int32(127)) << np.int32(23)
    return y * np.int32(exponent).view(np.float32)


@_jit
def _raise(scores):  # type: ignore[no-untyped-def]
    for r in range(_ROWS):
        for j in range(scores.shape[1]):
            scores[r, j] = _exp2(scores[r, j])


@_jit
def _products(rows, i, start, columns, out, width):  # type: ignore[no-untyped-def]
    """``out[r, j] = start[i + r] + sum_d rows[i + r, d] columns[d, j]``."""
    for r in range(_ROWS):
        for j in range(out.shape[1]):
            total = start[i + r]
            for d in range(len(width)):
                total += rows[i + r, d] * columns[d, j]
            out[r, j] = total


@_jit
def _sums(weights, columns, out, i):  # type: ignore[no-untyped-def]
    """``out[i + r, d] = sum_j weights[r, j] columns[d, j]``, two columns at a time."""
    for d in range(0, columns.shape[0], 2):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = _ZERO
        for j in range(columns.shape[1]):
            w0, w1, w2, w3 = weights[0, j], weights[1, j], weights[2, j], weights[3, j]
            a, b = columns[d, j], columns[d + 1, j]
            a0 += w0 * a
            a1 += w1 * a
            a2 += w2 * a
            a3 += w3 * a
            b0 += w0 * b
            b1 += w1 * b
            b2 += w2 * b
            b3 += w3 * b
        out[i, d], out[i + 1, d], out[i + 2, d], out[i + 3, d] = a0, a1, a2, a3
        out[i, d + 1], out[i + 1, d + 1], out[i + 2, d + 1], out[i + 3, d + 1] = b0, b1, b2, b3


@_jit
def _spread(weights, rows, i, out):  # type: ignore[no-untyped-def]
    """``out[d, j] += sum_r weights[r, j] rows[i + r, d]``, two columns at a time."""
    for d in range(0, out.shape[0], 2):
        a0, a1, a2, a3 = rows[i, d], rows[i + 1, d], rows[i + 2, d], rows[i + 3, d]
        b0, b1, b2, b3 = rows[i, d + 1], rows[i + 1, d + 1], rows[i + 2, d + 1], rows[i + 3, d + 1]
        for j in range(out.shape[1]):
            w0, w1, w2, w3 = weights[0, j], weights[1, j], weights[2, j], weights[3, j]
            out[d, j] += w0 * a0 + w1 * a1 + w2 * a2 + w3 * a3
            out[d + 1, j] += w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3


@_jit
def _as_rows(table, cell, head, factor, out, width):  # type: ignore[no-untyped-def]
    """Copy one head of the tokens, times a factor; return the length of the longest row."""
    longest = _ZERO
    for i in range(table.shape[1]):
        square = _ZERO
        for d in range(len(width)):
            out[i, d] = table[cell, i, head, d] * factor
            square += out[i, d] * out[i, d]
        longest = max(longest, square)
    return np.sqrt(longest)


@_jit
def _as_columns(table, cell, head, out, width):  # type: ignore[no-untyped-def]
    """Copy one head of the tokens turned round; return the length of the longest column."""
    longest = _ZERO
    for i in range(table.shape[1]):
        square = _ZERO
        for d in range(len(width)):
            value = table[cell, i, head, d]
            out[d, i] = value
            square += value * value
        longest = max(longest, square)
    return np.sqrt(longest)


@_jit
def _room(n, width):  # type: ignore[no-untyped-def]
    """How many rows and columns there are with padding, and how wide a head is with it."""
    return n + _ROWS, -(-n // _LANES) * _LANES, len(width) + len(width) % 2


@_jit
def _forward(qkv, scale, mixed, logsumexp, width, start, stop):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _room(n, width)
    query, sums = np.zeros((n_rows, wide), np.float32), np.zeros((n_rows, wide), np.float32)
    key, value = np.zeros((wide, n_columns), np.float32), np.zeros((wide, n_columns), np.float32)
    weights = np.empty((_ROWS, n_columns), np.float32)
    zeros, shift = np.zeros(n_rows, np.float32), np.zeros(_ROWS, np.float32)
    for unit in range(start, stop):
        cell, head = divmod(unit, n_heads)
        longest = _as_rows(qkv[:, :, 0], cell, head, scale, query, width)
        longest *= _as_columns(qkv[:, :, 1], cell, head, key, width)
        _as_columns(qkv[:, :, 2], cell, head, value, width)
        for i in range(0, n, _ROWS):
            _products(query, i, zeros, key, weights, width)
            for r in range(_ROWS):
                shift[r] = _ZERO if longest < _SAFE else weights[r, :n].max()
                if shift[r] != _ZERO:
                    weights[r] -= shift[r]
            _raise(weights)
            weights[:, n:] = _ZERO
            _sums(weights, value, sums, i)
            for r in range(min(_ROWS, n - i)):
                total = weights[r].sum()
                logsumexp[cell, head, i + r] = shift[r] + np.log2(total)
                for d in range(len(width)):
                    mixed[cell, i + r, head, d] = sums[i + r, d] / total


@_jit
def _backward(  # type: ignore[no-untyped-def]
    qkv, scale, mixed, logsumexp, slope, out, width, start, stop
):
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _room(n, width)
    query, of_mixed = np.zeros((n_rows, wide), np.float32), np.zeros((n_rows, wide), np.float32)
    key, value = np.zeros((wide, n_columns), np.float32), np.zeros((wide, n_columns), np.float32)
    of_query = np.zeros((n_rows, wide), np.float32)
    of_key, of_value = np.empty_like(key), np.empty_like(value)
    weights = np.empty((_ROWS, n_columns), np.float32)
    of_scores = np.empty_like(weights)
    less, common = np.zeros(n_rows, np.float32), np.zeros(n_rows, np.float32)
    for unit in range(start, stop):
        cell, head = divmod(unit, n_heads)
        _as_rows(qkv[:, :, 0], cell, head, scale, query, width)
        _as_columns(qkv[:, :, 1], cell, head, key, width)
        _as_columns(qkv[:, :, 2], cell, head, value, width)
        _as_rows(slope, cell, head, _ONE, of_mixed, width)
        for i in range(n):
            less[i] = -logsumexp[cell, head, i]
            common[i] = _ZERO
            for d in range(len(width)):
                common[i] -= of_mixed[i, d] * mixed[cell, i, head, d]
        of_key[:] = _ZERO
        of_value[:] = _ZERO
        for i in range(0, n, _ROWS):
            _products(query, i, less, key, weights, width)
            _raise(weights)
            # In the padding a score of zero may be far above the others.
            weights[:, n:] = _ZERO
            _products(of_mixed, i, common, value, of_scores, width)
            for r in range(_ROWS):
                for j in range(n_columns):
                    of_scores[r, j] *= weights[r, j]
            _sums(of_scores, key, of_query, i)
            _spread(of_scores, query, i, of_key)
            _spread(weights, of_mixed, i, of_value)
        for i in range(n):
            for d in range(len(width)):
                out[cell, i, 0, head, d] = of_query[i, d] * (scale * _LN_2)
                out[cell, i, 1, head, d] = of_key[d, i] * _LN_2
                out[cell, i, 2, head, d] = of_value[d, i]


@_jit
def _carry(qkv, scale, logsumexp, row, out, width, start, stop):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _room(n, width)
    query, key = np.zeros((n_rows, wide), np.float32), np.zeros((wide, n_columns), np.float32)
    weights, total = np.empty((_ROWS, n_columns), np.float32), np.empty(n_columns, np.float32)
    less, share = np.zeros(n_rows, np.float32), np.zeros(n_rows, np.float32)
    for unit in range(start, stop):
        cell, head = divmod(unit, n_heads)
        _as_rows(qkv[:, :, 0], cell, head, scale, query, width)
        _as_columns(qkv[:, :, 1], cell, head, key, width)
        less[:n] = -logsumexp[cell, head]
        share[:n] = row[cell]
        total[:] = _ZERO
        for i in range(0, n, _ROWS):
            _products(query, i, less, key, weights, width)
            _raise(weights)
            for j in range(n_columns):
                total[j] += (
                    weights[0, j] * share[i]
                    + weights[1, j] * share[i + 1]
                    + weights[2, j] * share[i + 2]
                    + weights[3, j] * share[i + 3]
                )
        out[cell, head] = total[:n]


def attend(qkv: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of each head.

    Parameters
    ----------
    qkv
        Queries, keys and values of the tokens, in single precision,
        ``(n_cells, n_tokens, 3, n_heads, head_dim)``.
    scale
        What the products of queries and keys are multiplied by.

    Returns
    -------
    Mixed values, ``(n_cells, n_tokens, n_heads, head_dim)``, and of each query the logarithm to
    base two of the sum of the exponentials of its scores, ``(n_cells, n_heads, n_tokens)``. No
    gradient flows through the latter.
    """
    return _Attend.apply(qkv.contiguous(), scale)  # type: ignore[no-any-return]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        n_cells, n_tokens, _, n_heads, width = qkv.shape
        mixed = qkv.new_empty(n_cells, n_tokens, n_heads, width)
        logsumexp = qkv.new_empty(n_cells, n_heads, n_tokens)
        _do(_forward, qkv, scale, mixed, logsumexp)
        ctx.save_for_backward(qkv, mixed, logsumexp)
        ctx.scale = scale
        ctx.mark_non_differentiable(logsumexp)
        return mixed, logsumexp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor, None]:
        qkv, mixed, logsumexp = ctx.saved_tensors
        of_qkv = torch.empty_like(qkv)
        _do(_backward, qkv, ctx.scale, mixed, logsumexp, slope.contiguous(), of_qkv)
        return of_qkv, None


def carry(row: Tensor, qkv: Tensor, scale: float, logsumexp: Tensor) -> Tensor:
    """Multiply a row by the attention of each head.

    Parameters
    ----------
    row
        Shape ``(n_cells, n_tokens)``.
    qkv, scale
        What :func:`attend` was given.
    logsumexp
        What it returned.

    Returns
    -------
    Shape ``(n_cells, n_heads, n_tokens)``.
    """
    out = torch.empty_like(logsumexp)
    # By this name a profile shows it; what autograd knows has a name already.
    with torch.profiler.record_function("_Carry"):
        _do(_carry, qkv, scale, logsumexp, row.contiguous(), out)
    return out


def _do(kernel: Callable[..., None], qkv: Tensor, scale: float, *tensors: Tensor) -> None:
    """Run a kernel over all cells and heads, on as many threads as torch has."""
    n_cells, n_tokens, _, n_heads, width = qkv.shape
    arrays = [tensor.detach().numpy() for tensor in tensors]
    # The length of a tuple, unlike that of an axis, is known to the compiler.
    given = (qkv.detach().numpy(), np.float32(scale * _LOG2_E), *arrays, (0,) * width)
    n_units = n_cells * n_heads
    n_parts = min(torch.get_num_threads(), n_units, n_units * n_tokens**2 // _LEAST)
    n_parts = max(n_parts, 1)
    ends = [n_units * (i + 1) // n_parts for i in range(n_parts)]
    if n_parts > 1:
        _let_go_of_processors()
    others = []
    for start, stop in pairwise(ends):
        try:
            pool = _threads(os.getpid(), torch.get_num_threads())
            others.append(pool.submit(kernel, *given, start, stop))
        except RuntimeError:  # the interpreter is about to end and lets no thread begin
            kernel(*given, start, stop)
    kernel(*given, 0, ends[0])
    for other in others:
        other.result()


@lru_cache(maxsize=1)
def _threads(process: int, number: int) -> ThreadPoolExecutor:
    """Threads of this process: a child has none of its parent's."""
    return ThreadPoolExecutor(number, thread_name_prefix="tosica-attention")


def _let_go_of_processors() -> None:
    """End torch's threads, which wait for their next work at full speed; it starts them anew."""
    openmp = _openmp()
    # Where there are processors to spare, who waits is in nobody's way.
    if openmp is not None and 2 * torch.get_num_threads() > len(os.sched_getaffinity(0)):
        openmp.omp_pause_resource_all(_SOFT)


@lru_cache
def _openmp() -> ctypes.CDLL | None:
    """GNU's OpenMP library, on Linux mostly torch's, if it has the call that is needed."""
    try:
        library = ctypes.CDLL("libgomp.so.1")
        return library if hasattr(library, "omp_pause_resource_all") else None
    except OSError:
        return None
