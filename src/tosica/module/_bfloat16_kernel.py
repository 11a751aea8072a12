"""Attention on bfloat16 with the instruction that multiplies it, of x86 processors with AVX-512.

No compiler finds the instruction ``vdpbf16ps`` by itself. It multiplies 32 numbers by 32 others and
adds neighboring products to 16 sums in single precision. Neighbors are two dimensions in the
products of queries and keys, and two keys in the sums over keys.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding
import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from tosica.module._kernel_math import (
    ONE,
    ZERO,
    aligned_zeros,
    exp2_for,
    jit,
    rounded,
)

# Queries computed together; keys are padded to a multiple of the bfloat16 numbers in a register.
_ROWS, _LANES = 4, 32
# Number of queries whose weights are kept while the heads are added up, a multiple of the former.
_BLOCK = 24
# Scores up to this size need no shift by their maximum before they are exponentiated.
_MAX_UNSHIFTED = np.float32(60)
_FAR_BELOW = np.float32(-1e30)

_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_INT, 16), ir.VectorType(_FLOAT, 16)
_BYTES = 64
_INSTRUCTION = "llvm.x86.avx512bf16.dpbf16ps.512"


def _load(builder: Any, address: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _spread(builder: Any, number: Any) -> Any:
    """Fill a register with one number."""
    first = builder.insert_element(ir.Constant(_INTS, ir.Undefined), number, ir.Constant(_INT, 0))
    zeros = ir.Constant(_INTS, [0] * 16)
    return builder.shuffle_vector(first, ir.Constant(_INTS, ir.Undefined), zeros)


def _multiply_add(builder: Any, total: Any, a: Any, b: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS, _INTS, _INTS])
    # LLVM 16 and newer know a pair as two numbers, and accept it as an integer, too.
    instruction = cgutils.get_or_insert_function(builder.module, kind, _INSTRUCTION)
    return builder.call(instruction, [total, a, b])


@intrinsic
def _scores(typingctx: Any, query: Any, key: Any, out: Any, n_columns: Any, width: Any) -> Any:
    """Products of two queries with all keys.

    The first three are addresses: of ``(2, n_pairs)`` pairs, of ``(n_pairs, n_columns)`` pairs, and
    of ``(2, n_columns)`` numbers in single precision. ``width`` is a tuple of ``n_pairs``.
    """
    n_pairs = len(width)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query, key, out, n_columns, _ = arguments
        word = query.type

        def at(address: Any, offset: Any) -> Any:
            return builder.add(address, offset)

        of_query = [
            _spread(builder, _load(builder, at(query, ir.Constant(word, 4 * p)), _INT, 4))
            for p in range(2 * n_pairs)
        ]
        row_bytes = builder.mul(n_columns, ir.Constant(word, 4))
        stop = builder.udiv(n_columns, ir.Constant(word, 16))
        with cgutils.for_range(builder, stop) as loop:
            offset = builder.mul(loop.index, ir.Constant(word, _BYTES))
            totals = [ir.Constant(_FLOATS, [0.0] * 16)] * 2
            address = at(key, offset)
            for p in range(n_pairs):
                keys = _load(builder, address, _INTS, _BYTES)
                totals = [
                    _multiply_add(builder, totals[r], of_query[r * n_pairs + p], keys)
                    for r in range(2)
                ]
                address = at(address, row_bytes)
            address = at(out, offset)
            for total in totals:
                builder.store(total, builder.inttoptr(address, _FLOATS.as_pointer()), align=_BYTES)
                address = at(address, row_bytes)
        return context.get_dummy_value()

    return nb.types.none(query, key, out, n_columns, width), generate


@intrinsic
def _sums(typingctx: Any, weights: Any, value: Any, out: Any, n_columns: Any) -> Any:
    """Sums of two values over all keys, with four rows of weights.

    The first three are addresses: of ``(4, n_columns)`` and of ``(2, n_columns)`` numbers in
    bfloat16, and of ``(4, 2)`` numbers in single precision.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, value, out, n_columns = arguments
        word = weights.type
        row_bytes = builder.mul(n_columns, ir.Constant(word, 2))
        totals = [cgutils.alloca_once(builder, _FLOATS) for _ in range(8)]
        for total in totals:
            builder.store(ir.Constant(_FLOATS, [0.0] * 16), total)
        stop = builder.udiv(n_columns, ir.Constant(word, 32))
        with cgutils.for_range(builder, stop) as loop:
            offset = builder.mul(loop.index, ir.Constant(word, _BYTES))
            address = builder.add(value, offset)
            of_value = [
                _load(builder, address, _INTS, _BYTES),
                _load(builder, builder.add(address, row_bytes), _INTS, _BYTES),
            ]
            address = builder.add(weights, offset)
            for r in range(4):
                row = _load(builder, address, _INTS, _BYTES)
                for c in range(2):
                    total = totals[2 * r + c]
                    found = _multiply_add(builder, builder.load(total), row, of_value[c])
                    builder.store(found, total)
                address = builder.add(address, row_bytes)
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _FLOATS])
        add_up = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.vector.reduce.fadd.v16f32"
        )
        for i, total in enumerate(totals):
            summed = builder.call(
                add_up, [ir.Constant(_FLOAT, 0.0), builder.load(total)], fastmath=("reassoc",)
            )
            address = builder.add(out, ir.Constant(word, 4 * i))
            builder.store(summed, builder.inttoptr(address, _FLOAT.as_pointer()))
        return context.get_dummy_value()

    return nb.types.none(weights, value, out, n_columns), generate


@jit
def _square(pair):  # type: ignore[no-untyped-def]
    """Sum of the squares of two numbers."""
    low = np.int32(pair << np.int32(16)).view(np.float32)
    high = np.int32(pair & np.int32(-65536)).view(np.float32)
    return low * low + high * high


@jit
def _load_rows(pairs, cell, head, out, first, width):  # type: ignore[no-untyped-def]
    """Copy one head, tokens in rows from ``first`` on; return the largest norm of a token."""
    longest = ZERO
    for i in range(pairs.shape[1]):
        square = ZERO
        for p in range(len(width)):
            pair = pairs[cell, i, 0, head, p]
            out[first + i, p] = pair
            square += _square(pair)
        longest = max(longest, square)
    return np.sqrt(longest)


@jit
def _load_columns(pairs, cell, head, out, first, width):  # type: ignore[no-untyped-def]
    """The same for keys, with tokens in columns."""
    longest = ZERO
    for i in range(pairs.shape[1]):
        square = ZERO
        for p in range(len(width)):
            pair = pairs[cell, i, 1, head, p]
            out[first + p, i] = pair
            square += _square(pair)
        longest = max(longest, square)
    return np.sqrt(longest)


@jit
def _load_values(pairs, cell, head, out, first, width):  # type: ignore[no-untyped-def]
    for i in range(pairs.shape[1]):
        for p in range(len(width)):
            pair = pairs[cell, i, 2, head, p]
            out[first + 2 * p, i] = np.int16(pair)
            out[first + 2 * p + 1, i] = np.int16(pair >> np.int32(16))


@jit
def _exponentiate(scores, padding, scale, shift, out, total, r):  # type: ignore[no-untyped-def]
    """``scores[r] = 2 ** (scale * scores[r] - shift)``, its sum, and its bfloat16 in ``out[r]``."""
    like = np.int16(0)
    summed = ZERO
    for j in range(scores.shape[1]):
        weight = exp2_for(scores[r, j] * scale + (padding[j] - shift), like)
        scores[r, j] = weight
        summed += weight
        # A weight is at most 2 ** 60, so that this rounds, to the nearer number.
        bits = np.int32(np.float32(weight).view(np.int32)) + np.int32(0x8000)
        out[r, j] = np.int16(bits >> np.int32(16))
    total[r] = summed


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
def forward(pairs, scale, mixed, logsumexp, mean, width):  # type: ignore[no-untyped-def]
    """``_forward`` of ``_attention_kernel``, for pairs of dimensions.

    ``pairs`` is the projection, ``(n_cells, n_tokens, 3, n_heads, n_pairs)``, and ``width`` a tuple
    of ``n_pairs``.
    """
    n, n_heads = pairs.shape[1], pairs.shape[3]
    n_pairs = len(width)
    n_rows, n_columns = -(-n // _ROWS) * _ROWS, -(-n // _LANES) * _LANES
    query = aligned_zeros(n_heads * n_rows, n_pairs).view(np.int32)
    key = aligned_zeros(n_heads * n_pairs, n_columns).view(np.int32)
    value = aligned_zeros(n_heads * n_pairs, n_columns).view(np.int16).reshape(-1, n_columns)
    scores, block = aligned_zeros(_ROWS, n_columns), aligned_zeros(_BLOCK, n_columns)
    weights = aligned_zeros(_ROWS // 2, n_columns).view(np.int16).reshape(_ROWS, n_columns)
    padding = aligned_zeros(1, n_columns)[0]
    sums, total = aligned_zeros(_ROWS, 2), np.zeros(_ROWS, np.float32)
    longest, shift = np.zeros(n_heads, np.float32), np.zeros(_ROWS, np.float32)
    of_sums, of_scores, of_weights = sums.ctypes.data, scores.ctypes.data, weights.ctypes.data
    of_query, of_key, of_value = query.ctypes.data, key.ctypes.data, value.ctypes.data
    padding[n:] = _FAR_BELOW
    share, like = ONE / np.float32(n_heads), np.int16(0)
    for cell in range(len(pairs)):
        for head in range(n_heads):
            rows, columns = head * n_rows, head * n_pairs
            longest[head] = scale * _load_rows(pairs, cell, head, query, rows, width)
            longest[head] *= _load_columns(pairs, cell, head, key, columns, width)
            _load_values(pairs, cell, head, value, 2 * columns, width)
        for first in range(0, n, _BLOCK):
            stop = min(first + _BLOCK, n)
            for head in range(n_heads):
                for i in range(first, stop, _ROWS):
                    for r in range(0, _ROWS, 2):
                        _scores(
                            of_query + 4 * n_pairs * (head * n_rows + i + r),
                            of_key + 4 * n_columns * head * n_pairs,
                            of_scores + 4 * n_columns * r,
                            n_columns,
                            width,
                        )
                    for r in range(_ROWS):
                        shift[r] = ZERO
                        if not longest[head] < _MAX_UNSHIFTED:
                            shift[r] = scores[r, :n].max() * scale
                        _exponentiate(scores, padding, scale, shift[r], weights, total, r)
                    for p in range(n_pairs):
                        _sums(
                            of_weights,
                            of_value + 4 * n_columns * (head * n_pairs + p),
                            of_sums,
                            n_columns,
                        )
                        for r in range(min(_ROWS, stop - i)):
                            for c in range(2):
                                found = sums[r, c] / total[r]
                                mixed[cell, i + r, head, 2 * p + c] = rounded(found, like)
                    for r in range(min(_ROWS, stop - i)):
                        if len(logsumexp):
                            logsumexp[cell, head, i + r] = shift[r] + np.log2(total[r])
                        if len(mean):
                            _add_row(scores, r, share / total[r], block, i + r - first, head == 0)
            if len(mean):
                for i in range(first, stop):
                    for j in range(n):
                        mean[cell, i, j] = rounded(block[i - first, j], like)


@cache
def has_instruction() -> bool:
    """Whether numba compiles for a processor with the instruction."""
    features = llvmlite.binding.get_host_cpu_features()
    overridden = any(
        getattr(nb.config, name, None) is not None for name in ("CPU_NAME", "CPU_FEATURES")
    )
    return bool(features.get("avx512bf16")) and not overridden
