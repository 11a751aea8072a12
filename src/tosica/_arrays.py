"""Types of numpy arrays: floating-point numbers, integers, masks and objects."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.floating]
# Where double precision would take too much memory.
Float32Array: TypeAlias = NDArray[np.float32]
IntArray: TypeAlias = NDArray[np.integer]
ObjectArray: TypeAlias = NDArray[np.object_]
