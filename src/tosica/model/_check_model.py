"""Check that an argument is a model."""

from __future__ import annotations

import os
from typing import Any

from tosica.model._tosica import TOSICA


def check_model(model: Any) -> None:
    """Check that a value is a :class:`tosica.TOSICA`.

    Raises
    ------
    TypeError
        If it is anything else, such as the folder of a saved model.
    """
    if isinstance(model, TOSICA):
        return
    cure = "train one, or load one with tosica.TOSICA.load(folder)"
    if isinstance(model, str | os.PathLike):
        cure = f"load it with tosica.TOSICA.load({os.fspath(model)!r})"
    elif model is TOSICA:
        cure = "pass a model that was trained, not the class"
    raise TypeError(f"model must be a TOSICA model, not {type(model).__name__}: {cure}.")
