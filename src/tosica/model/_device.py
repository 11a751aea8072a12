"""Check the device of a training or a prediction, and the process of a training."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import TYPE_CHECKING

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import AcceleratorRegistry
from scvi.model._utils import parse_device_args

from tosica._text import first_line, in_python, parameter
from tosica._validate import Either, InstanceOf, Integer, OneOf

if TYPE_CHECKING:
    from scvi.model.base import BaseModelClass

ACCELERATOR = OneOf("auto", "gpu", *AcceleratorRegistry.available_accelerators())
DEVICE = Either(first=OneOf("auto"), second=Integer(least=0))
DEVICE_OF_TORCH = InstanceOf(
    "'cpu', 'cuda', 'cuda:0' and so on, or the number of a GPU",
    str,
    Integral,
    torch.device,
)


def check_devices(accelerator: str, devices: int | list[int] | str) -> None:
    """Refuse devices of a training that Lightning does not find.

    Raises
    ------
    ValueError
        If there are no such devices.
    """
    try:
        with warnings.catch_warnings():
            # The trainer will say it.
            warnings.simplefilter("ignore")
            parse_device_args(accelerator, devices, return_device="torch")
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{parameter('accelerator', accelerator)}{in_python(f', devices={devices!r}')} cannot be used "
            f"({first_line(error)}): leave {in_python('them', 'it')} out."
        ) from error


def find_device(accelerator: str, device: int | str) -> torch.device:
    """Find the device for the arguments ``accelerator`` and ``device`` of :meth:`tosica.TOSICA.load`.

    Raises
    ------
    ValueError
        If a GPU is asked for where torch finds none.
    """
    has_gpu = torch.cuda.is_available()
    if accelerator == "cpu" or (accelerator == "auto" and not has_gpu):
        return torch.device("cpu")
    device_type = "cuda" if accelerator in ("auto", "gpu") else accelerator
    if device_type == "cuda" and not has_gpu:
        raise ValueError(
            f"{parameter('accelerator', accelerator)}, but torch finds no GPU here: pass "
            f"{parameter('accelerator', 'cpu')} or 'auto'."
        )
    return torch.device(device_type if device == "auto" else f"{device_type}:{device}")


def is_rank_zero(model: BaseModelClass) -> bool:
    """Whether this is the only process with the model, or the first of several."""
    trainer = getattr(model, "trainer", None)
    return trainer is None or trainer.world_size == 1 or bool(trainer.is_global_zero)
