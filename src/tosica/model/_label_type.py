"""The type that labels have in the reference: text, numbers or truth values, with an order or not.

A model names its labels by text. Predictions come back in the type of the reference's labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Types of numpy that Python's own values have, as pandas calls these.
_OF_PYTHON = {"integer": "int64", "boolean": "bool", "floating": "float64"}


class LabelType(NamedTuple):
    """Type of the labels of a reference.

    Parameters
    ----------
    dtype
        Name of their type in numpy, such as ``"int64"`` or ``"bool"``; ``None`` for text.
    ordered
        Whether they are the categories of an ordered categorical.
    """

    dtype: str | None = None
    ordered: bool = False

    @classmethod
    def of(cls, categories: pd.Index, *, ordered: bool = False) -> LabelType:
        """Recognize the type of labels.

        Parameters
        ----------
        categories
            The labels that occur, without what marks cells that have none.
        ordered
            As in the class.
        """
        dtype: Any = categories.dtype
        name = None
        if pd.api.types.is_object_dtype(dtype):
            name = _OF_PYTHON.get(pd.api.types.infer_dtype(categories))
        elif pd.api.types.is_numeric_dtype(dtype):
            name = getattr(dtype, "numpy_dtype", dtype).name
        return cls(name, bool(ordered))

    @classmethod
    def load(cls, state: Mapping[str, Any] | None) -> LabelType:
        """Make the type from what a registry holds; older ones hold nothing."""
        return cls(**state) if state else cls()

    def values(self, labels: Sequence[str]) -> np.ndarray:
        """Turn text into labels of the type, ``(n_labels,)``.

        Examples
        --------
        >>> LabelType("bool").values(["False", "True"])
        array([False,  True])
        """
        if self.dtype is None:
            return np.array(labels, dtype=object)
        dtype = np.dtype(self.dtype)
        if dtype.kind == "b":
            return np.array([label == "True" for label in labels], dtype=bool)
        of_text = int if dtype.kind in "iu" else float
        return np.array([of_text(label) for label in labels], dtype=dtype)
