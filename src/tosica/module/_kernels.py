"""Attention on CPUs in single precision, compiled: forward and backward, without stored weights.

Heads of a gene-set encoder are narrow, so attention scores are quick to compute and slow to store.
Four rows of scores are computed at a time, which stay in the first-level cache: twice as fast as
torch's own attention. It runs on the caller's thread, without Python's global lock:
``tosica._parallel`` spreads cells over threads. :func:`attend` takes torch's attention elsewhere.
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
MAX_HEAD_DIM = 16
# Tokens of a cell up to which the mean weights are kept for the rollout, 64 MB in each layer.
_MOST_KEPT = 4096
# Number of queries computed together, and the multiple that the number of keys is padded to: a few
# vector registers.
_ROWS, _LANES = 4, 32
# Number of queries whose weights are kept while the heads are added up, a multiple of the former.
_BLOCK = 24
_ZERO, _ONE = np.float32(0), np.float32(1)
# Powers of two are quicker to compute than powers of e.
_LOG2_E, _LN_2 = np.float32(1 / math.log(2)), np.float32(math.log(2))
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
_FAST: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
kernel = nb.njit(nogil=True, cache=True, **_FAST)
# Parts are not called from Python: what would allow it takes a fifth of the time to compile.
_INSIDE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
part = nb.njit(**_FAST, **_INSIDE)
# For what must be computed in the order that it is written in.
part_in_order = nb.njit(error_model="numpy", fastmath={"contract"}, **_INSIDE)


def attend(qkv: Tensor, *, mean: bool = False) -> tuple[Tensor, Tensor | None]:
    """Mix values by attention: torch's own, or on CPUs our kernel, which is twice as fast.

    Parameters
    ----------
    qkv
        Queries, keys and values of the tokens, ``(B, T, 3, H, d)``. Scores are divided by the root of d.
    mean
        Whether to return the weights averaged over the heads, if they come for free. No gradient flows
        through them.

    Returns
    -------
    Mixed values, ``(B, T, H, d)``, and the weights, ``(B, T, T)``, or ``None``.
    """
    if not is_plain(qkv) or qkv.shape[-1] > MAX_HEAD_DIM:
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2), None
    qkv, mean = qkv.contiguous(), mean and qkv.shape[1] <= _MOST_KEPT
    if torch.is_grad_enabled() and qkv.requires_grad:
        return _Attend.apply(qkv), None
    mixed = qkv.new_empty(*qkv.shape[:2], *qkv.shape[3:])
    nothing = qkv.new_empty(0, 0, 0)
    weights = qkv.new_empty(len(qkv), qkv.shape[1], qkv.shape[1]) if mean else nothing
    # Autograd functions are named in a profile; this is not one, so it is named here.
    with torch.profiler.record_function("attend"):
        _run_forward(qkv, mixed, nothing, weights)
    return mixed, weights if mean else None


def is_plain(x: Tensor) -> bool:
    """Whether values are of single precision on a CPU, computed as they are."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Attend(torch.autograd.Function):
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
        return _run_backward(qkv, mixed, logsumexp, slope.contiguous())


def _run_forward(qkv: Tensor, mixed: Tensor, logsumexp: Tensor, mean: Tensor) -> None:
    """Fill in the mixed values, and the other two unless they are empty, on the caller's thread."""
    n_heads, n_rows, n_columns, width = _padded(qkv)
    # So the weights of the padding are next to nothing.
    padding = qkv.new_full((n_columns,), float(_FAR_BELOW))
    padding[: qkv.shape[1]] = 0
    shapes = (
        *(
            (n_heads, n_rows, width),
            (n_heads, width, n_columns),
            (n_heads, width, n_columns),
            (n_rows, width),
        ),
        *((_ROWS, n_columns), (_BLOCK, n_columns), (_ROWS,), (_ROWS,), (n_heads,)),
    )
    _run(_forward, qkv, mixed, logsumexp, mean, padding, *map(qkv.new_zeros, shapes))


def _run_backward(
    qkv: Tensor, mixed: Tensor, logsumexp: Tensor, slope: Tensor
) -> Tensor:
    """Compute the gradient of queries, keys and values, on the caller's thread."""
    _, n_rows, n_columns, width = _padded(qkv)
    of_qkv, rows, columns = torch.empty_like(qkv), (n_rows, width), (width, n_columns)
    shapes = (
        *(rows, rows, rows, columns, columns, columns, columns),
        *2 * ((_ROWS, n_columns),),
        *2 * ((n_rows,),),
    )
    _run(
        _backward,
        qkv,
        mixed,
        logsumexp,
        slope[:, :, None],
        of_qkv,
        *map(qkv.new_zeros, shapes),
    )
    return of_qkv


def _padded(qkv: Tensor) -> tuple[int, int, int, int]:
    """Number of heads, and with padding number of rows and columns and width of a head."""
    _, n, _, n_heads, width = qkv.shape
    return n_heads, n + _ROWS, -(-n // _LANES) * _LANES, width + width % 2


def _run(loops: Callable[..., None], qkv: Tensor, *tensors: Tensor) -> None:
    """Run compiled loops over all cells and heads.

    Its working space is made by torch, which lets it start at a cache line, as the widest registers
    want it, and needs no compilation.
    """
    # Unlike the length of an axis, the length of a tuple is known to the compiler.
    width = (0,) * qkv.shape[-1]
    scale = np.float32(qkv.shape[-1] ** -0.5 * _LOG2_E)
    loops(scale, *(tensor.detach().numpy() for tensor in (qkv, *tensors)), width)


# ------------------------------------------------------------------ numbers


@part_in_order
def _times_power(y, shifted):  # type: ignore[no-untyped-def]
    """``y * 2 ** k`` for the whole number k in the last bits of ``shifted``."""
    exponent = np.int32(np.float32(shifted).view(np.int32)) << np.int32(23)
    bits = np.int32(np.float32(y).view(np.int32)) + np.int32(exponent)
    return np.int32(bits).view(np.float32)


@part_in_order
def _exp2(x):  # type: ignore[no-untyped-def]
    """``2 ** x`` for x up to 127; values below -126 count as -126."""
    x = max(x, _LOWEST)
    shifted = x + _ROUND
    rest = x - (shifted - _ROUND)
    y = _POLYNOMIAL[5]
    y = y * rest + _POLYNOMIAL[4]
    y = y * rest + _POLYNOMIAL[3]
    y = y * rest + _POLYNOMIAL[2]
    y = y * rest + _POLYNOMIAL[1]
    y = y * rest + _POLYNOMIAL[0]
    return _times_power(y, shifted)


# ------------------------------------------------------------------ parts


@part
def _multiply(rows, i, start, columns, out, width):  # type: ignore[no-untyped-def]
    """``out[r, j] = start[i + r] + sum_d rows[i + r, d] columns[d, j]``."""
    for r in range(_ROWS):
        for j in range(out.shape[1]):
            total = start[i + r]
            for d in range(len(width)):
                total += rows[i + r, d] * columns[d, j]
            out[r, j] = total


@part
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
        out[i, d + 1], out[i + 1, d + 1], out[i + 2, d + 1], out[i + 3, d + 1] = (
            b0,
            b1,
            b2,
            b3,
        )


@part
def _add_outer(weights, rows, i, out):  # type: ignore[no-untyped-def]
    """``out[d, j] += sum_r weights[r, j] rows[i + r, d]``, two columns at a time."""
    for d in range(0, out.shape[0], 2):
        a0, a1, a2, a3 = rows[i, d], rows[i + 1, d], rows[i + 2, d], rows[i + 3, d]
        b0, b1, b2, b3 = (
            rows[i, d + 1],
            rows[i + 1, d + 1],
            rows[i + 2, d + 1],
            rows[i + 3, d + 1],
        )
        for j in range(out.shape[1]):
            w0, w1, w2, w3 = weights[0, j], weights[1, j], weights[2, j], weights[3, j]
            out[d, j] += w0 * a0 + w1 * a1 + w2 * a2 + w3 * a3
            out[d + 1, j] += w0 * b0 + w1 * b1 + w2 * b2 + w3 * b3


@part
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


@part
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


@part_in_order
def _score(query, i, key, j, start, width):  # type: ignore[no-untyped-def]
    """``start + sum_d query[i, d] key[d, j]``, as two sums, which a processor adds up at once."""
    even, odd = start, _ZERO
    for d in range(0, len(width) - 1, 2):
        even += query[i, d] * key[d, j]
        odd += query[i, d + 1] * key[d + 1, j]
    if len(width) % 2:
        even += query[i, len(width) - 1] * key[len(width) - 1, j]
    return even + odd


@part
def _exponentiate(query, i, shift, key, padding, weights, totals, width):  # type: ignore[no-untyped-def]
    """``weights[r, j] = 2 ** (score of row i + r - shift[r])``, and their sum over j."""
    for r in range(0, _ROWS, 2):
        total, other = _ZERO, _ZERO
        for j in range(weights.shape[1]):
            start = padding[j]
            weight = _exp2(_score(query, i + r, key, j, start - shift[r], width))
            weights[r, j] = weight
            total += weight
            weight = _exp2(
                _score(query, i + r + 1, key, j, start - shift[r + 1], width)
            )
            weights[r + 1, j] = weight
            other += weight
        totals[r], totals[r + 1] = total, other


@part
def _find_shift(query, i, key, n, longest, shift, width):  # type: ignore[no-untyped-def]
    """The largest score of each row, which its scores are shifted by, or 0 if none can be large."""
    for r in range(_ROWS):
        shift[r] = _ZERO
        if not longest < _MAX_UNSHIFTED:
            shift[r] = _FAR_BELOW
            for j in range(n):
                shift[r] = max(shift[r], _score(query, i + r, key, j, _ZERO, width))


@part
def _add_row(weights, r, factor, out, i, is_first):  # type: ignore[no-untyped-def]
    """``out[i] += weights[r] * factor``, or without what was there before."""
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
    n, n_heads = qkv.shape[1], qkv.shape[3]
    share = _ONE / np.float32(n_heads)
    for cell in range(len(qkv)):
        for head in range(n_heads):
            longest[head] = _load_rows(qkv, cell, 0, head, scale, query[head], width)
            longest[head] *= _load_columns(qkv, cell, 1, head, key[head], width)
            _load_columns(qkv, cell, 2, head, value[head], width)
        # The weights of a few rows stay in the cache while the heads are added up.
        for first in range(0, n, _BLOCK):
            stop = min(first + _BLOCK, n)
            for head in range(n_heads):
                for i in range(first, stop, _ROWS):
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
                    for r in range(min(_ROWS, stop - i)):
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
                                i + r - first,
                                head == 0,
                            )
            if len(mean):
                for i in range(first, stop):
                    for j in range(n):
                        mean[cell, i, j] = block[i - first, j]


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
