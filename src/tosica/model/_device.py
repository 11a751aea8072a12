"""The device that a model is put on."""

from __future__ import annotations

import torch


def find_device(accelerator: str, device: int | str) -> torch.device:
    """Turn the arguments of :meth:`tosica.TOSICA.load` into a device; of "auto" the best one.

    Raises
    ------
    ValueError
        If a GPU is asked for where torch finds none.
    """
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    kind = "cuda" if accelerator in ("auto", "gpu") else accelerator
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"accelerator={accelerator!r} was asked for, but torch finds no GPU here: pass "
            "accelerator='cpu' or 'auto'."
        )
    return torch.device(kind if device == "auto" else f"{kind}:{device}")
