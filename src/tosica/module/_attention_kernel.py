"""Attention on CPUs that does not store its weights: forward, backward, and one rollout row.

Heads of a gene-set encoder are narrow, so attention scores are quick to compute and slow to
store. The kernels compute four rows of scores at a time, which stay in the first-level cache. Every
kernel takes the projection of ``SelfAttention`` and runs on the caller's thread, without Python's
global lock: ``tosica._threads`` spreads cells over threads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable

# torch computes wider heads: the loops over the width of a head are unrolled here.
MAX_HEAD_DIM = 16
# Number of queries computed together, and the multiple that the number of keys is padded to: a few
# vector registers.
_ROWS, _LANES = 4, 32
# Powers of two are quicker to compute than powers of e.
_LOG2_E, _LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
# Scores up to this size need no shift by their maximum before they are exponentiated.
_MAX_UNSHIFTED = np.float32(60)
_ZERO, _HALF, _ONE, _LOWEST = (np.float32(value) for value in (0, 0.5, 1, -126))
_SERIES = tuple(np.float32(math.log(2) ** k / math.factorial(k)) for k in range(7))

# Fast math without the flags under which NaN would be lost.
_jit = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath={"reassoc", "contract", "nsz", "arcp"},
)


@nb.njit(nogil=True, cache=True, fastmath={"contract"})
def _exp2(x):  # type: ignore[no-untyped-def]
    """``2 ** x`` for x up to 128; values below -126 count as -126."""
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
def _exp2_in_place(scores):  # type: ignore[no-untyped-def]
    for r in range(_ROWS):
        for j in range(scores.shape[1]):
            scores[r, j] = _exp2(scores[r, j])


@_jit
def _multiply(rows, i, start, columns, out, width):  # type: ignore[no-untyped-def]
    """``out[r, j] = start[i + r] + sum_d rows[i + r, d] columns[d, j]``."""
    for r in range(_ROWS):
        for j in range(out.shape[1]):
            total = start[i + r]
            for d in range(len(width)):
                total += rows[i + r, d] * columns[d, j]
            out[r, j] = total


@_jit
def _weighted_sums(weights, columns, out, i):  # type: ignore[no-untyped-def]
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
def _add_outer(weights, rows, i, out):  # type: ignore[no-untyped-def]
    """``out[d, j] += sum_r weights[r, j] rows[i + r, d]``, two columns at a time."""
    for d in range(0, out.shape[0], 2):
        a0, a1, a2, a3 = rows[i, d], rows[i + 1, d], rows[i + 2, d], rows[i + 3, d]
        b0, b1, b2, b3 = rows[i, d + 1], rows[i + 1, d + 1], rows[i + 2, d + 1], rows[i + 3, d + 1]
        for j in range(out.shape[1]):
            w0, w1, w2, w3 = weights[0, j], weights[1, j], weights[2, j], weights[3, j]
            out[d, j] += w0 * a0 + w1 * a1 + w2 * a2 + w3 * a3
            out[d + 1, j] += w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3


@_jit
def _load_rows(table, cell, head, factor, out, width):  # type: ignore[no-untyped-def]
    """Copy one head times a factor, tokens in rows; return the largest norm of a row."""
    longest = _ZERO
    for i in range(table.shape[1]):
        square = _ZERO
        for d in range(len(width)):
            out[i, d] = table[cell, i, head, d] * factor
            square += out[i, d] * out[i, d]
        longest = max(longest, square)
    return np.sqrt(longest)


@_jit
def _load_columns(table, cell, head, out, width):  # type: ignore[no-untyped-def]
    """Copy one head, tokens in columns; return the largest norm of a column."""
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
def _padded_shape(n, width):  # type: ignore[no-untyped-def]
    """Number of rows and columns, and width of a head, with padding."""
    return n + _ROWS, -(-n // _LANES) * _LANES, len(width) + len(width) % 2


@_jit
def _forward(qkv, scale, mixed, logsumexp, width):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _padded_shape(n, width)
    query, sums = np.zeros((n_rows, wide), np.float32), np.zeros((n_rows, wide), np.float32)
    key, value = np.zeros((wide, n_columns), np.float32), np.zeros((wide, n_columns), np.float32)
    weights = np.empty((_ROWS, n_columns), np.float32)
    zeros, shift = np.zeros(n_rows, np.float32), np.zeros(_ROWS, np.float32)
    for unit in range(len(qkv) * n_heads):
        cell, head = divmod(unit, n_heads)
        longest = _load_rows(qkv[:, :, 0], cell, head, scale, query, width)
        longest *= _load_columns(qkv[:, :, 1], cell, head, key, width)
        _load_columns(qkv[:, :, 2], cell, head, value, width)
        for i in range(0, n, _ROWS):
            _multiply(query, i, zeros, key, weights, width)
            for r in range(_ROWS):
                shift[r] = _ZERO if longest < _MAX_UNSHIFTED else weights[r, :n].max()
                if shift[r] != _ZERO:
                    weights[r] -= shift[r]
            _exp2_in_place(weights)
            weights[:, n:] = _ZERO
            _weighted_sums(weights, value, sums, i)
            for r in range(min(_ROWS, n - i)):
                total = weights[r].sum()
                logsumexp[cell, head, i + r] = shift[r] + np.log2(total)
                for d in range(len(width)):
                    mixed[cell, i + r, head, d] = sums[i + r, d] / total


@_jit
def _backward(qkv, scale, mixed, logsumexp, slope, out, width):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _padded_shape(n, width)
    query, of_mixed = np.zeros((n_rows, wide), np.float32), np.zeros((n_rows, wide), np.float32)
    key, value = np.zeros((wide, n_columns), np.float32), np.zeros((wide, n_columns), np.float32)
    of_query = np.zeros((n_rows, wide), np.float32)
    of_key, of_value = np.empty_like(key), np.empty_like(value)
    weights = np.empty((_ROWS, n_columns), np.float32)
    of_scores = np.empty_like(weights)
    less, common = np.zeros(n_rows, np.float32), np.zeros(n_rows, np.float32)
    for unit in range(len(qkv) * n_heads):
        cell, head = divmod(unit, n_heads)
        _load_rows(qkv[:, :, 0], cell, head, scale, query, width)
        _load_columns(qkv[:, :, 1], cell, head, key, width)
        _load_columns(qkv[:, :, 2], cell, head, value, width)
        _load_rows(slope, cell, head, _ONE, of_mixed, width)
        for i in range(n):
            less[i] = -logsumexp[cell, head, i]
            common[i] = _ZERO
            for d in range(len(width)):
                common[i] -= of_mixed[i, d] * mixed[cell, i, head, d]
        of_key[:] = _ZERO
        of_value[:] = _ZERO
        for i in range(0, n, _ROWS):
            _multiply(query, i, less, key, weights, width)
            _exp2_in_place(weights)
            # A score of zero in the padding may be far above the scores of the tokens.
            weights[:, n:] = _ZERO
            _multiply(of_mixed, i, common, value, of_scores, width)
            for r in range(_ROWS):
                for j in range(n_columns):
                    of_scores[r, j] *= weights[r, j]
            _weighted_sums(of_scores, key, of_query, i)
            _add_outer(of_scores, query, i, of_key)
            _add_outer(weights, of_mixed, i, of_value)
        for i in range(n):
            for d in range(len(width)):
                out[cell, i, 0, head, d] = of_query[i, d] * (scale * _LN_2)
                out[cell, i, 1, head, d] = of_key[d, i] * _LN_2
                out[cell, i, 2, head, d] = of_value[d, i]


@_jit
def _rollout_row(qkv, scale, logsumexp, row, out, width):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _padded_shape(n, width)
    query, key = np.zeros((n_rows, wide), np.float32), np.zeros((wide, n_columns), np.float32)
    weights, total = np.empty((_ROWS, n_columns), np.float32), np.empty(n_columns, np.float32)
    less, share = np.zeros(n_rows, np.float32), np.zeros(n_rows, np.float32)
    for unit in range(len(qkv) * n_heads):
        cell, head = divmod(unit, n_heads)
        _load_rows(qkv[:, :, 0], cell, head, scale, query, width)
        _load_columns(qkv[:, :, 1], cell, head, key, width)
        less[:n] = -logsumexp[cell, head]
        share[:n] = row[cell]
        total[:] = _ZERO
        for i in range(0, n, _ROWS):
            _multiply(query, i, less, key, weights, width)
            _exp2_in_place(weights)
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
        Factor of the products of queries and keys.

    Returns
    -------
    Mixed values, ``(n_cells, n_tokens, n_heads, head_dim)``, and the log-sum-exp of each query's
    scores, to base two, ``(n_cells, n_heads, n_tokens)``. No gradient flows through the latter.
    """
    return _Attend.apply(qkv.contiguous(), scale)  # type: ignore[no-any-return]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        n_cells, n_tokens, _, n_heads, width = qkv.shape
        mixed = qkv.new_empty(n_cells, n_tokens, n_heads, width)
        logsumexp = qkv.new_empty(n_cells, n_heads, n_tokens)
        _run(_forward, qkv, scale, mixed, logsumexp)
        ctx.save_for_backward(qkv, mixed, logsumexp)
        ctx.scale = scale
        ctx.mark_non_differentiable(logsumexp)
        return mixed, logsumexp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor, None]:
        qkv, mixed, logsumexp = ctx.saved_tensors
        of_qkv = torch.empty_like(qkv)
        _run(_backward, qkv, ctx.scale, mixed, logsumexp, slope.contiguous(), of_qkv)
        return of_qkv, None


def rollout_row(row: Tensor, qkv: Tensor, scale: float, logsumexp: Tensor) -> Tensor:
    """Multiply a row by the attention of each head.

    Parameters
    ----------
    row
        Shape ``(n_cells, n_tokens)``.
    qkv, scale
        Arguments of :func:`attend`.
    logsumexp
        Second return value of :func:`attend`.

    Returns
    -------
    Shape ``(n_cells, n_heads, n_tokens)``.
    """
    out = torch.empty_like(logsumexp)
    # Autograd functions are named in a profile; this one is not, so it is named here.
    with torch.profiler.record_function("rollout_row"):
        _run(_rollout_row, qkv, scale, logsumexp, row.contiguous(), out)
    return out


def _run(kernel: Callable[..., None], qkv: Tensor, scale: float, *tensors: Tensor) -> None:
    """Run a kernel over all cells and heads, on the caller's thread."""
    arrays = [tensor.detach().numpy() for tensor in tensors]
    # Unlike the length of an axis, the length of a tuple is known to the compiler.
    width = (0,) * qkv.shape[-1]
    kernel(qkv.detach().numpy(), np.float32(scale * _LOG2_E), *arrays, width)
