"""Check the device of a training or a prediction."""

from __future__ import annotations

import warnings
from numbers import Integral

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import AcceleratorRegistry
from scvi.model._utils import parse_device_args

from tosica._checks import Either, InstanceOf, Integer, OneOf
from tosica._text import first_line

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
            f"accelerator={accelerator!r}, devices={devices!r} cannot be used ({first_line(error)}): leave them out."
        ) from error
