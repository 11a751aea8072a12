"""Attention: torch's own, and on CPUs in single precision a compiled kernel.

Heads of a gene-set encoder are narrow, so attention scores are quick to compute and slow to store.
The kernel computes four rows of scores at a time, which stay in the first-level cache. It runs on
the caller's thread, without Python's global lock: ``tosica._parallel`` spreads cells over threads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable

# The loops over the width of a head are unrolled up to this width; torch computes wider heads.
_MAX_HEAD_DIM = 16
# Most tokens of a cell for which the mean weights are kept for the rollout, 64 MB in each layer.
_MAX_MEAN_TOKENS = 4096
# Number of queries computed together, and the multiple that the number of keys is padded to: a few
# vector registers.
_ROWS = 4
_LANES = 32
# Number of queries whose weights are kept while the heads are added up, a multiple of _ROWS.
_BLOCK = 24
_ZERO = np.float32(0)
_ONE = np.float32(1)
# Powers of two are quicker to compute than powers of e.
_LOG2_E = np.float32(1 / math.log(2))
_LN_2 = np.float32(math.log(2))
# Scores up to this size need no shift by their maximum before they are exponentiated.
_MAX_UNSHIFTED = np.float32(60)
# Below any score.
_FAR_BELOW = np.float32(-1e30)
# The least exponent of a normal number.
_LOWEST = np.float32(-126)
# Adding this rounds to a whole number, which is then in the last bits.
_ROUND = np.float32(1.5 * 2**23)
# 2 ** x for x between -0.5 and 0.5: the polynomial with the least largest relative error, of 1e-7,
# among those that are 1 at 0.
_POLYNOMIAL = tuple(
    np.float32(c)
    for c in (1, 0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647296)
)

# Fast math without the flags under which NaN would be lost.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}
kernel = nb.njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST_MATH)
# Wrappers for calls from Python would take a fifth of the time to compile.
_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
helper = nb.njit(error_model="numpy", fastmath=_FAST_MATH, **_NO_WRAPPERS)
# For sums that must be computed in the order in which they are written.
ordered_helper = nb.njit(error_model="numpy", fastmath={"contract"}, **_NO_WRAPPERS)


def attend(qkv: Tensor, *, mean: bool = False) -> tuple[Tensor, Tensor | None]:
    """Mix values by attention.

    Parameters
    ----------
    qkv
        Queries, keys and values of the tokens, ``(B, T, 3, H, d)``. Scores are divided by the root
        of d.
    mean
        Whether to return the weights averaged over the heads, if they come for free. No gradient
        flows through them.

    Returns
    -------
    Mixed values, ``(B, T, H, d)``, and the weights, ``(B, T, T)``, or ``None``.
    """
    # With torch's attention, 300 tokens on one thread take 1.2 times as long to train, 3.5 to explain.
    if not _fits_kernel(qkv):
        return attend_by_torch(qkv), None
    qkv = qkv.contiguous()
    if torch.is_grad_enabled() and qkv.requires_grad:
        return _Attend.apply(qkv), None
    n_cells, n_tokens, _, n_heads, width = qkv.shape
    mean = mean and n_tokens <= _MAX_MEAN_TOKENS
    mixed = qkv.new_empty(n_cells, n_tokens, n_heads, width)
    empty = qkv.new_empty(0, 0, 0)
    weights = qkv.new_empty(n_cells, n_tokens, n_tokens) if mean else empty
    # The name in a profile.
    with torch.profiler.record_function("attend"):
        _run_forward(qkv, mixed, empty, weights)
    return mixed, weights if mean else None


def attend_by_torch(qkv: Tensor) -> Tensor:
    """Mix values as the kernel does, ``(B, T, H, d)``: the reference, and for all that it cannot compute."""
    query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)


def _fits_kernel(qkv: Tensor) -> bool:
    return (
        qkv.device.type == "cpu"
        and qkv.dtype == torch.float32
        and qkv.shape[-1] <= _MAX_HEAD_DIM
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Attend(torch.autograd.Function):
    """The kernel with gradients."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        n_cells, n_tokens, _, n_heads, width = qkv.shape
        mixed = qkv.new_empty(n_cells, n_tokens, n_heads, width)
        logsumexp = qkv.new_empty(n_cells, n_heads, n_tokens)
        _run_forward(qkv, mixed, logsumexp, qkv.new_empty(0, 0, 0))
        ctx.save_for_backward(qkv, mixed, logsumexp)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        qkv, mixed, logsumexp = ctx.saved_tensors
        _, n_rows, n_columns, width = _padded(qkv)
        gradient = torch.empty_like(qkv)
        _run(
            _backward,
            qkv,
            mixed,
            logsumexp,
            slope.contiguous()[:, :, None],
            gradient,
            qkv.new_zeros(n_rows, width),  # query
            qkv.new_zeros(n_rows, width),  # of_query
            qkv.new_zeros(n_rows, width),  # of_mixed
            qkv.new_zeros(width, n_columns),  # key
            qkv.new_zeros(width, n_columns),  # value
            qkv.new_zeros(width, n_columns),  # of_key
            qkv.new_zeros(width, n_columns),  # of_value
            qkv.new_zeros(_ROWS, n_columns),  # weights
            qkv.new_zeros(_ROWS, n_columns),  # of_scores
            qkv.new_zeros(n_rows),  # less
            qkv.new_zeros(n_rows),  # common
        )
        return gradient


def _run_forward(qkv: Tensor, mixed: Tensor, logsumexp: Tensor, mean: Tensor) -> None:
    """Fill in the mixed values, and the other two unless they are empty, on the caller's thread."""
    n_heads, n_rows, n_columns, width = _padded(qkv)
    # So the weights of the padding are next to nothing.
    padding = qkv.new_full((n_columns,), float(_FAR_BELOW))
    padding[: qkv.shape[1]] = 0
    _run(
        _forward,
        qkv,
        mixed,
        logsumexp,
        mean,
        padding,
        qkv.new_zeros(n_heads, n_rows, width),  # query
        qkv.new_zeros(n_heads, width, n_columns),  # key
        qkv.new_zeros(n_heads, width, n_columns),  # value
        qkv.new_zeros(n_rows, width),  # sums
        qkv.new_zeros(_ROWS, n_columns),  # weights
        qkv.new_zeros(_BLOCK, n_columns),  # block
        qkv.new_zeros(_ROWS),  # shift
        qkv.new_zeros(_ROWS),  # totals
        qkv.new_zeros(n_heads),  # longest
    )


def _padded(qkv: Tensor) -> tuple[int, int, int, int]:
    """Number of heads; numbers of rows and columns and width of a head, all with padding."""
    _, n_tokens, _, n_heads, width = qkv.shape
    n_columns = math.ceil(n_tokens / _LANES) * _LANES
    return n_heads, n_tokens + _ROWS, n_columns, width + width % 2


def _run(loops: Callable[..., None], qkv: Tensor, *tensors: Tensor) -> None:
    """Run compiled loops over all cells and heads.

    Torch allocates their working space: it begins at a cache line, as the widest registers need it,
    and is not compiled.
    """
    # Unlike the length of an axis, the length of a tuple is known to the compiler.
    width = (0,) * qkv.shape[-1]
    scale = np.float32(qkv.shape[-1] ** -0.5 * _LOG2_E)
    arrays = [tensor.detach().numpy() for tensor in (qkv, *tensors)]
    loops(scale, *arrays, width)


# ------------------------------------------------------------------ numbers


@ordered_helper
def _times_power(y, shifted):  # type: ignore[no-untyped-def]
    """``y * 2 ** k`` for the whole number k in the last bits of ``shifted``."""
    exponent = np.int32(np.float32(shifted).view(np.int32)) << np.int32(23)
    bits = np.int32(np.float32(y).view(np.int32)) + np.int32(exponent)
    return np.int32(bits).view(np.float32)


@ordered_helper
def _exp2(x):  # type: ignore[no-untyped-def]
    """``2 ** x`` for x up to 127; values below -126 count as -126."""
    x = max(x, _LOWEST)
    shifted = x + _ROUND
    fraction = x - (shifted - _ROUND)
    y = _POLYNOMIAL[5]
    y = y * fraction + _POLYNOMIAL[4]
    y = y * fraction + _POLYNOMIAL[3]
    y = y * fraction + _POLYNOMIAL[2]
    y = y * fraction + _POLYNOMIAL[1]
    y = y * fraction + _POLYNOMIAL[0]
    return _times_power(y, shifted)


# ------------------------------------------------------------------ rows and columns


@helper
def _multiply(rows, i, offset, columns, out, width):  # type: ignore[no-untyped-def]
    """``out[r, j] = offset[i + r] + sum_d rows[i + r, d] columns[d, j]``."""
    for r in range(_ROWS):
        for j in range(out.shape[1]):
            total = offset[i + r]
            for d in range(len(width)):
                total += rows[i + r, d] * columns[d, j]
            out[r, j] = total


@helper
def _weighted_sums(weights, columns, out, i):  # type: ignore[no-untyped-def]
    """``out[i + r, d] = sum_j weights[r, j] columns[d, j]``, two columns at a time."""
    for d in range(0, columns.shape[0], 2):
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = _ZERO
        for j in range(columns.shape[1]):
            w0 = weights[0, j]
            w1 = weights[1, j]
            w2 = weights[2, j]
            w3 = weights[3, j]
            a = columns[d, j]
            b = columns[d + 1, j]
            a0 += w0 * a
            a1 += w1 * a
            a2 += w2 * a
            a3 += w3 * a
            b0 += w0 * b
            b1 += w1 * b
            b2 += w2 * b
            b3 += w3 * b
        out[i, d] = a0
        out[i + 1, d] = a1
        out[i + 2, d] = a2
        out[i + 3, d] = a3
        out[i, d + 1] = b0
        out[i + 1, d + 1] = b1
        out[i + 2, d + 1] = b2
        out[i + 3, d + 1] = b3


@helper
def _add_outer(weights, rows, i, out):  # type: ignore[no-untyped-def]
    """``out[d, j] += sum_r weights[r, j] rows[i + r, d]``, two columns at a time."""
    for d in range(0, out.shape[0], 2):
        a0 = rows[i, d]
        a1 = rows[i + 1, d]
        a2 = rows[i + 2, d]
        a3 = rows[i + 3, d]
        b0 = rows[i, d + 1]
        b1 = rows[i + 1, d + 1]
        b2 = rows[i + 2, d + 1]
        b3 = rows[i + 3, d + 1]
        for j in range(out.shape[1]):
            w0 = weights[0, j]
            w1 = weights[1, j]
            w2 = weights[2, j]
            w3 = weights[3, j]
            out[d, j] += w0 * a0 + w1 * a1 + w2 * a2 + w3 * a3
            out[d + 1, j] += w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3


@helper
def _load_rows(table, cell, kind, head, factor, out, width):  # type: ignore[no-untyped-def]
    """Copy one head times a factor, tokens in rows; return the largest norm of a row."""
    longest = _ZERO
    for i in range(table.shape[1]):
        square = _ZERO
        for d in range(len(width)):
            out[i, d] = table[cell, i, kind, head, d] * factor
            square += out[i, d] * out[i, d]
        longest = max(longest, square)
    return np.sqrt(longest)


@helper
def _load_columns(table, cell, kind, head, out, width):  # type: ignore[no-untyped-def]
    """Copy one head, tokens in columns; return the largest norm of a column."""
    longest = _ZERO
    for i in range(table.shape[1]):
        square = _ZERO
        for d in range(len(width)):
            value = table[cell, i, kind, head, d]
            out[d, i] = value
            square += value * value
        longest = max(longest, square)
    return np.sqrt(longest)


@ordered_helper
def _score(query, i, key, j, offset, width):  # type: ignore[no-untyped-def]
    """``offset + sum_d query[i, d] key[d, j]``, as two sums, which a processor adds up at once."""
    even = offset
    odd = _ZERO
    for d in range(0, len(width) - 1, 2):
        even += query[i, d] * key[d, j]
        odd += query[i, d + 1] * key[d + 1, j]
    if len(width) % 2:
        even += query[i, len(width) - 1] * key[len(width) - 1, j]
    return even + odd


@helper
def _exponentiate(query, i, shift, key, padding, weights, totals, width):  # type: ignore[no-untyped-def]
    """``weights[r, j] = 2 ** (score of row i + r - shift[r])``, and their sum over j."""
    for r in range(0, _ROWS, 2):
        even = odd = _ZERO
        for j in range(weights.shape[1]):
            offset = padding[j]
            weight = _exp2(_score(query, i + r, key, j, offset - shift[r], width))
            weights[r, j] = weight
            even += weight
            weight = _exp2(
                _score(query, i + r + 1, key, j, offset - shift[r + 1], width)
            )
            weights[r + 1, j] = weight
            odd += weight
        totals[r] = even
        totals[r + 1] = odd


@helper
def _find_shift(query, i, key, n, longest, shift, width):  # type: ignore[no-untyped-def]
    """The largest score of each row, which its scores are shifted by, or 0 if none can be large."""
    for r in range(_ROWS):
        shift[r] = _ZERO
        if not longest < _MAX_UNSHIFTED:
            shift[r] = _FAR_BELOW
            for j in range(n):
                shift[r] = max(shift[r], _score(query, i + r, key, j, _ZERO, width))


@helper
def _add_row(weights, r, factor, out, i, is_first):  # type: ignore[no-untyped-def]
    """``out[i] += weights[r] * factor``, or ``=`` for the first head."""
    if is_first:
        for j in range(weights.shape[1]):
            out[i, j] = weights[r, j] * factor
    else:
        for j in range(weights.shape[1]):
            out[i, j] += weights[r, j] * factor


@kernel
def _forward(  # type: ignore[no-untyped-def]
    scale,
    qkv,
    mixed,
    logsumexp,
    mean,
    padding,
    query,
    key,
    value,
    sums,
    weights,
    block,
    shift,
    totals,
    longest,
    width,
):
    n = qkv.shape[1]
    n_heads = qkv.shape[3]
    share = _ONE / np.float32(n_heads)
    for cell in range(len(qkv)):
        for head in range(n_heads):
            longest[head] = _load_rows(qkv, cell, 0, head, scale, query[head], width)
            longest[head] *= _load_columns(qkv, cell, 1, head, key[head], width)
            _load_columns(qkv, cell, 2, head, value[head], width)
        # The weights of a few rows stay in the cache while the heads are added up.
        for offset in range(0, n, _BLOCK):
            end = min(offset + _BLOCK, n)
            for head in range(n_heads):
                for i in range(offset, end, _ROWS):
                    _find_shift(
                        query[head], i, key[head], n, longest[head], shift, width
                    )
                    _exponentiate(
                        query[head],
                        i,
                        shift,
                        key[head],
                        padding,
                        weights,
                        totals,
                        width,
                    )
                    _weighted_sums(weights, value[head], sums, i)
                    for r in range(min(_ROWS, end - i)):
                        factor = _ONE / totals[r]
                        for d in range(len(width)):
                            mixed[cell, i + r, head, d] = sums[i + r, d] * factor
                        if len(logsumexp):
                            logsumexp[cell, head, i + r] = shift[r] + np.log2(totals[r])
                        if len(mean):
                            _add_row(
                                weights,
                                r,
                                factor * share,
                                block,
                                i + r - offset,
                                head == 0,
                            )
            if len(mean):
                for i in range(offset, end):
                    for j in range(n):
                        mean[cell, i, j] = block[i - offset, j]


@kernel
def _backward(  # type: ignore[no-untyped-def]
    scale,
    qkv,
    mixed,
    logsumexp,
    slope,
    out,
    query,
    of_query,
    of_mixed,
    key,
    value,
    of_key,
    of_value,
    weights,
    of_scores,
    less,
    common,
    width,
):
    n = qkv.shape[1]
    for cell in range(len(qkv)):
        for head in range(qkv.shape[3]):
            _load_rows(qkv, cell, 0, head, scale, query, width)
            _load_columns(qkv, cell, 1, head, key, width)
            _load_columns(qkv, cell, 2, head, value, width)
            _load_rows(slope, cell, 0, head, _ONE, of_mixed, width)
            for i in range(n):
                less[i] = -logsumexp[cell, head, i]
                common[i] = _ZERO
                for d in range(len(width)):
                    common[i] -= of_mixed[i, d] * mixed[cell, i, head, d]
            for d in range(of_key.shape[0]):
                for j in range(of_key.shape[1]):
                    of_key[d, j] = of_value[d, j] = _ZERO
            for i in range(0, n, _ROWS):
                _multiply(query, i, less, key, weights, width)
                _multiply(of_mixed, i, common, value, of_scores, width)
                for r in range(_ROWS):
                    for j in range(n):
                        weights[r, j] = _exp2(weights[r, j])
                        of_scores[r, j] *= weights[r, j]
                    # A score of zero in the padding may be far above the scores of the tokens.
                    for j in range(n, weights.shape[1]):
                        weights[r, j] = of_scores[r, j] = _ZERO
                _weighted_sums(of_scores, key, of_query, i)
                _add_outer(of_scores, query, i, of_key)
                _add_outer(weights, of_mixed, i, of_value)
            for i in range(n):
                for d in range(len(width)):
                    out[cell, i, 0, head, d] = of_query[i, d] * (scale * _LN_2)
                    out[cell, i, 1, head, d] = of_key[d, i] * _LN_2
                    out[cell, i, 2, head, d] = of_value[d, i]
