"""What the compiled kernels share: the decorator, powers of two, numbers in bfloat16.

A number in bfloat16 is the upper half of one in single precision. numpy has no such type, so
kernels see the bits as int16. They compute in single precision, whatever they read and write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba as nb
import numpy as np
import torch
from numba.extending import overload

if TYPE_CHECKING:
    from torch import Tensor

ZERO, ONE = np.float32(0), np.float32(1)
# The least exponent of a normal number.
LOWEST = np.float32(-126)
# Adding this rounds to a whole number, which is then in the last bits.
_ROUND = np.float32(1.5 * 2**23)
# 2 ** x for x between -0.5 and 0.5: polynomials with the least largest relative error, of 1e-7
# and 1e-4, among those that are 1 at 0.
_FINE = tuple(
    np.float32(c) for c in (1, 0.693147004, 0.240222424, 0.0555073358, 0.00967151299, 0.00132647296)
)
_COARSE = tuple(np.float32(c) for c in (1, 0.693282962, 0.242210999, 0.0550089143))

# Fast math without the flags under which NaN would be lost.
jit = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath={"reassoc", "contract", "nsz", "arcp"},
)
# For what must be computed in the order that it is written in.
jit_in_order = nb.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})


@jit_in_order
def _times_power(y, shifted):  # type: ignore[no-untyped-def]
    """``y * 2 ** k`` for the whole number k in the last bits of ``shifted``."""
    exponent = np.int32(np.float32(shifted).view(np.int32)) << np.int32(23)
    bits = np.int32(np.float32(y).view(np.int32)) + np.int32(exponent)
    return np.int32(bits).view(np.float32)


@jit_in_order
def exp2(x):  # type: ignore[no-untyped-def]
    """``2 ** x`` for x up to 127; values below -126 count as -126."""
    x = max(x, LOWEST)
    shifted = x + _ROUND
    rest = x - (shifted - _ROUND)
    y = _FINE[5]
    y = y * rest + _FINE[4]
    y = y * rest + _FINE[3]
    y = y * rest + _FINE[2]
    y = y * rest + _FINE[1]
    y = y * rest + _FINE[0]
    return _times_power(y, shifted)


@jit_in_order
def _exp2_coarse(x):  # type: ignore[no-untyped-def]
    x = max(x, LOWEST)
    shifted = x + _ROUND
    rest = x - (shifted - _ROUND)
    y = _COARSE[3]
    y = y * rest + _COARSE[2]
    y = y * rest + _COARSE[1]
    y = y * rest + _COARSE[0]
    return _times_power(y, shifted)


def exp2_for(x: Any, like: Any) -> Any:
    """Like :func:`exp2`, with as many digits as the format of the number ``like`` can hold."""
    raise NotImplementedError


@overload(exp2_for)
def _exp2_for(x, like):  # type: ignore[no-untyped-def]
    if isinstance(like, nb.types.Integer):
        return lambda x, like: _exp2_coarse(x)
    return lambda x, like: exp2(x)


@nb.njit(nogil=True, cache=True)
def aligned_zeros(n_rows, n_columns):  # type: ignore[no-untyped-def]
    """Zeros in single precision that start at a cache line, which the widest registers load."""
    flat = np.zeros(n_rows * n_columns + 16, np.float32)
    start = (-(flat.ctypes.data // 4)) % 16
    return flat[start : start + n_rows * n_columns].reshape(n_rows, n_columns)


def as_float(value: Any) -> Any:
    """Single precision of a number in either format; for kernels."""
    raise NotImplementedError


@overload(as_float)
def _as_float(value):  # type: ignore[no-untyped-def]
    if isinstance(value, nb.types.Integer):
        return lambda value: np.int32(np.int32(value) << np.int32(16)).view(np.float32)
    return lambda value: value


def rounded(value: Any, like: Any) -> Any:
    """Round a number to the format of the number ``like``; for kernels."""
    raise NotImplementedError


@overload(rounded)
def _rounded(value, like):  # type: ignore[no-untyped-def]
    if not isinstance(like, nb.types.Integer):
        return lambda value, like: value

    def round_to_even(value, like):  # type: ignore[no-untyped-def]
        bits = np.int32(np.float32(value).view(np.int32))
        odd = (bits >> np.int32(16)) & np.int32(1)
        return np.int16((bits + np.int32(0x7FFF) + odd) >> np.int32(16))

    return round_to_even


def as_array(tensor: Tensor) -> np.ndarray:
    """Array for a kernel, over the memory of a tensor in single precision or bfloat16."""
    tensor = tensor.detach()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
