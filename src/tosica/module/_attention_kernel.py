"""Attention on CPUs that does not store its weights: forward, backward, and one rollout row.

Heads of a gene-set encoder are narrow, so attention scores are quick to compute and slow to
store. The kernels compute four rows of scores at a time, which stay in the first-level cache. Every
kernel takes the projection of ``SelfAttention`` and runs on the caller's thread, without Python's
global lock: ``tosica._parallel`` spreads cells over threads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from tosica.module._bfloat16_kernel import forward as forward_bfloat16
from tosica.module._bfloat16_kernel import has_instruction
from tosica.module._kernel_math import (
    ONE,
    ZERO,
    aligned_zeros,
    as_array,
    as_float,
    exp2,
    exp2_for,
    jit,
    jit_in_order,
    rounded,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# torch computes wider heads: the loops over the width of a head are unrolled here.
MAX_HEAD_DIM = 16
# Number of queries computed together, and the multiple that the number of keys is padded to: a few
# vector registers.
_ROWS, _LANES = 4, 32
# Number of queries whose weights are kept while the heads are added up, a multiple of the former.
_BLOCK = 24
# Powers of two are quicker to compute than powers of e.
_LOG2_E, _LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
# Scores up to this size need no shift by their maximum before they are exponentiated.
_MAX_UNSHIFTED = np.float32(60)
# Below any score.
_FAR_BELOW = np.float32(-1e30)


@jit
def _exp2_in_place(scores):  # type: ignore[no-untyped-def]
    for r in range(_ROWS):
        for j in range(scores.shape[1]):
            scores[r, j] = exp2(scores[r, j])


@jit
def _multiply(rows, i, start, columns, out, width):  # type: ignore[no-untyped-def]
    """``out[r, j] = start[i + r] + sum_d rows[i + r, d] columns[d, j]``."""
    for r in range(_ROWS):
        for j in range(out.shape[1]):
            total = start[i + r]
            for d in range(len(width)):
                total += rows[i + r, d] * columns[d, j]
            out[r, j] = total


@jit
def _weighted_sums(weights, columns, out, i):  # type: ignore[no-untyped-def]
    """``out[i + r, d] = sum_j weights[r, j] columns[d, j]``, two columns at a time."""
    for d in range(0, columns.shape[0], 2):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = ZERO
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


@jit
def _add_outer(weights, rows, i, out):  # type: ignore[no-untyped-def]
    """``out[d, j] += sum_r weights[r, j] rows[i + r, d]``, two columns at a time."""
    for d in range(0, out.shape[0], 2):
        a0, a1, a2, a3 = rows[i, d], rows[i + 1, d], rows[i + 2, d], rows[i + 3, d]
        b0, b1, b2, b3 = rows[i, d + 1], rows[i + 1, d + 1], rows[i + 2, d + 1], rows[i + 3, d + 1]
        for j in range(out.shape[1]):
            w0, w1, w2, w3 = weights[0, j], weights[1, j], weights[2, j], weights[3, j]
            out[d, j] += w0 * a0 + w1 * a1 + w2 * a2 + w3 * a3
            out[d + 1, j] += w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3


@jit
def _load_rows(table, cell, head, factor, out, width):  # type: ignore[no-untyped-def]
    """Copy one head times a factor, tokens in rows; return the largest norm of a row."""
    longest = ZERO
    for i in range(table.shape[1]):
        square = ZERO
        for d in range(len(width)):
            out[i, d] = as_float(table[cell, i, head, d]) * factor
            square += out[i, d] * out[i, d]
        longest = max(longest, square)
    return np.sqrt(longest)


@jit
def _load_columns(table, cell, head, out, width):  # type: ignore[no-untyped-def]
    """Copy one head, tokens in columns; return the largest norm of a column."""
    longest = ZERO
    for i in range(table.shape[1]):
        square = ZERO
        for d in range(len(width)):
            value = as_float(table[cell, i, head, d])
            out[d, i] = value
            square += value * value
        longest = max(longest, square)
    return np.sqrt(longest)


@jit
def _padded_shape(n, width):  # type: ignore[no-untyped-def]
    """Number of rows and columns, and width of a head, with padding."""
    return n + _ROWS, -(-n // _LANES) * _LANES, len(width) + len(width) % 2


@jit_in_order
def _score(query, i, key, j, start, width):  # type: ignore[no-untyped-def]
    """``start + sum_d query[i, d] key[d, j]``, as two sums, which a processor adds up at once."""
    even, odd = start, ZERO
    for d in range(0, len(width) - 1, 2):
        even += query[i, d] * key[d, j]
        odd += query[i, d + 1] * key[d + 1, j]
    if len(width) % 2:
        even += query[i, len(width) - 1] * key[len(width) - 1, j]
    return even + odd


@jit
def _exponentiate(query, i, shift, key, padding, weights, totals, width, like):  # type: ignore[no-untyped-def]
    """``weights[r, j] = 2 ** (score of row i + r - shift[r])``, and their sum over j."""
    for r in range(0, _ROWS, 2):
        total, other = ZERO, ZERO
        for j in range(weights.shape[1]):
            start = padding[j]
            weight = exp2_for(_score(query, i + r, key, j, start - shift[r], width), like)
            weights[r, j] = weight
            total += weight
            weight = exp2_for(_score(query, i + r + 1, key, j, start - shift[r + 1], width), like)
            weights[r + 1, j] = weight
            other += weight
        totals[r], totals[r + 1] = total, other


@jit
def _forward(qkv, scale, mixed, logsumexp, mean, width):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _padded_shape(n, width)
    query, sums = aligned_zeros(n_heads * n_rows, wide), aligned_zeros(n_rows, wide)
    key = aligned_zeros(n_heads * wide, n_columns)
    value = aligned_zeros(n_heads * wide, n_columns)
    weights, block = aligned_zeros(_ROWS, n_columns), aligned_zeros(_BLOCK, n_columns)
    padding, zeros = aligned_zeros(1, n_columns)[0], np.zeros(n_rows, np.float32)
    shift, totals = np.zeros(_ROWS, np.float32), np.zeros(_ROWS, np.float32)
    shifted = np.zeros(n_heads, np.bool_)
    like = np.zeros(1, mixed.dtype)[0]
    # So the weights of the padding are next to nothing.
    padding[n:] = _FAR_BELOW
    share = ONE / np.float32(n_heads)
    for cell in range(len(qkv)):
        for head in range(n_heads):
            rows, columns = head * n_rows, head * wide
            longest = _load_rows(qkv[:, :, 0], cell, head, scale, query[rows:], width)
            longest *= _load_columns(qkv[:, :, 1], cell, head, key[columns:], width)
            _load_columns(qkv[:, :, 2], cell, head, value[columns:], width)
            shifted[head] = not longest < _MAX_UNSHIFTED
        # The weights of a few rows stay in the cache while the heads are added up.
        for first in range(0, n, _BLOCK):
            stop = min(first + _BLOCK, n)
            for head in range(n_heads):
                of_query = query[head * n_rows : (head + 1) * n_rows]
                of_key = key[head * wide : (head + 1) * wide]
                of_value = value[head * wide : (head + 1) * wide]
                shift[:] = ZERO
                for i in range(first, stop, _ROWS):
                    if shifted[head]:
                        _multiply(of_query, i, zeros, of_key, weights, width)
                        for r in range(_ROWS):
                            shift[r] = weights[r, :n].max()
                    _exponentiate(of_query, i, shift, of_key, padding, weights, totals, width, like)
                    _weighted_sums(weights, of_value, sums, i)
                    for r in range(min(_ROWS, stop - i)):
                        factor = ONE / totals[r]
                        for d in range(len(width)):
                            mixed[cell, i + r, head, d] = rounded(sums[i + r, d] * factor, like)
                        if len(logsumexp):
                            logsumexp[cell, head, i + r] = shift[r] + np.log2(totals[r])
                        if len(mean):
                            _add_row(weights, r, factor * share, block, i + r - first, head == 0)
            if len(mean):
                for i in range(first, stop):
                    for j in range(n):
                        mean[cell, i, j] = rounded(block[i - first, j], like)


@jit
def _add_row(weights, r, factor, out, i, is_first):  # type: ignore[no-untyped-def]
    """``out[i] += weights[r] * factor``, or without what was there before."""
    if is_first:
        for j in range(weights.shape[1]):
            out[i, j] = weights[r, j] * factor
    else:
        for j in range(weights.shape[1]):
            out[i, j] += weights[r, j] * factor


@jit
def _backward(qkv, scale, mixed, logsumexp, slope, out, width):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _padded_shape(n, width)
    query, of_mixed = aligned_zeros(n_rows, wide), aligned_zeros(n_rows, wide)
    key, value = aligned_zeros(wide, n_columns), aligned_zeros(wide, n_columns)
    of_query = aligned_zeros(n_rows, wide)
    of_key, of_value = np.empty_like(key), np.empty_like(value)
    weights = aligned_zeros(_ROWS, n_columns)
    of_scores = np.empty_like(weights)
    less, common = np.zeros(n_rows, np.float32), np.zeros(n_rows, np.float32)
    for unit in range(len(qkv) * n_heads):
        cell, head = divmod(unit, n_heads)
        _load_rows(qkv[:, :, 0], cell, head, scale, query, width)
        _load_columns(qkv[:, :, 1], cell, head, key, width)
        _load_columns(qkv[:, :, 2], cell, head, value, width)
        _load_rows(slope, cell, head, ONE, of_mixed, width)
        for i in range(n):
            less[i] = -logsumexp[cell, head, i]
            common[i] = ZERO
            for d in range(len(width)):
                common[i] -= of_mixed[i, d] * mixed[cell, i, head, d]
        of_key[:] = ZERO
        of_value[:] = ZERO
        for i in range(0, n, _ROWS):
            _multiply(query, i, less, key, weights, width)
            _exp2_in_place(weights)
            # A score of zero in the padding may be far above the scores of the tokens.
            weights[:, n:] = ZERO
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


@jit
def _rollout_row(qkv, scale, logsumexp, row, out, width):  # type: ignore[no-untyped-def]
    n, n_heads = qkv.shape[1], qkv.shape[3]
    n_rows, n_columns, wide = _padded_shape(n, width)
    query, key = aligned_zeros(n_rows, wide), aligned_zeros(wide, n_columns)
    weights, total = aligned_zeros(_ROWS, n_columns), np.empty(n_columns, np.float32)
    less, share = np.zeros(n_rows, np.float32), np.zeros(n_rows, np.float32)
    for unit in range(len(qkv) * n_heads):
        cell, head = divmod(unit, n_heads)
        _load_rows(qkv[:, :, 0], cell, head, scale, query, width)
        _load_columns(qkv[:, :, 1], cell, head, key, width)
        less[:n] = -logsumexp[cell, head]
        share[:n] = row[cell]
        total[:] = ZERO
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
        _run(_forward, qkv, scale, mixed, logsumexp, qkv.new_empty(0, 0, 0))
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


def attend_once(
    qkv: Tensor, scale: float, *, mean: bool = False, logsumexp: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Attention of each head without gradients, and what the rollout needs.

    Parameters
    ----------
    qkv, scale
        Arguments of :func:`attend`; the former in single precision or in bfloat16.
    mean
        Whether to return the weights.
    logsumexp
        Whether to return the log-sum-exp.

    Returns
    -------
    Mixed values, as those of :func:`attend` and in the format of ``qkv``; the weights, averaged
    over the heads, ``(n_cells, n_tokens, n_tokens)``, in that format; and the log-sum-exp as in
    :func:`attend`, in single precision. ``None`` stands for what was not asked for.
    """
    # An empty tensor may have strides that no pairs have.
    in_pairs = qkv.dtype == torch.bfloat16 and has_instruction() and len(qkv) > 0
    odd = qkv.shape[-1] % 2 if in_pairs else 0
    qkv = F.pad(qkv, (0, odd)).contiguous() if odd else qkv.contiguous()
    n_cells, n_tokens, _, n_heads, width = qkv.shape
    mixed = qkv.new_empty(n_cells, n_tokens, n_heads, width)
    single = qkv.new_empty(0, 0, 0, dtype=torch.float32)
    sums = single.new_empty(n_cells, n_heads, n_tokens) if logsumexp else single
    weights = qkv.new_empty(n_cells if mean else 0, n_tokens, n_tokens)
    # Autograd functions are named in a profile; this one is not, so it is named here.
    with torch.profiler.record_function("attend_once"):
        if in_pairs:
            _run(forward_bfloat16, qkv.view(torch.int32), scale, mixed, sums, weights)
        else:
            _run(_forward, qkv, scale, mixed, sums, weights)
    return mixed[..., : width - odd], weights if mean else None, sums if logsumexp else None


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
    with torch.profiler.record_function("rollout_row"):
        _run(_rollout_row, qkv, scale, logsumexp, row.contiguous(), out)
    return out


def _run(kernel: Callable[..., None], qkv: Tensor, scale: float, *tensors: Tensor) -> None:
    """Run a kernel over all cells and heads, on the caller's thread."""
    arrays = [as_array(tensor) for tensor in tensors]
    # Unlike the length of an axis, the length of a tuple is known to the compiler.
    width = (0,) * qkv.shape[-1]
    kernel(as_array(qkv), np.float32(scale * _LOG2_E), *arrays, width)
