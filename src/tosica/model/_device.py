"""The device that a model is put on."""

from __future__ import annotations

import torch


def find_device(accelerator: str, device: int | str) -> torch.device:
    """Turn the arguments of :meth:`tosica.TOSICA.load` into a device; of "auto" the best one."""
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    kind = "cuda" if accelerator in ("auto", "gpu") else accelerator
    return torch.device(kind if device == "auto" else f"{kind}:{device}")
