"""Types of arguments and of numpy arrays."""

import os
from typing import TypeAlias

import numpy as np
from anndata import AnnData
from mudata import MuData
from numpy.typing import NDArray

# As scvi-tools calls it.
AnnOrMuData: TypeAlias = AnnData | MuData
AnyPath: TypeAlias = str | os.PathLike[str]
BoolArray: TypeAlias = NDArray[np.bool_]
FloatArray: TypeAlias = NDArray[np.floating]
# Where double precision would take too much memory.
Float32Array: TypeAlias = NDArray[np.float32]
IntArray: TypeAlias = NDArray[np.integer]
ObjectArray: TypeAlias = NDArray[np.object_]
