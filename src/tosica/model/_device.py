"""Choose a device, and compile the encoder for it."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.accelerators import AcceleratorRegistry
from scvi.model._utils import parse_device_args

from tosica._checks import Either, InstanceOf, Integer, OneOf
from tosica._settings import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from tosica.module import Encoder

ACCELERATOR = OneOf("auto", "gpu", *AcceleratorRegistry.available_accelerators())
DEVICE = Either(first=OneOf("auto"), second=Integer(least=0))
DEVICE_OF_TORCH = InstanceOf(
    "'cpu', 'cuda', 'cuda:0' and so on, or the number of a GPU",
    str,
    Integral,
    torch.device,
)


def check_devices(accelerator: str, devices: int | list[int] | str) -> torch.device:
    """First of the devices of a training, which Lightning finds.

    Raises
    ------
    ValueError
        If there are no such devices.
    """
    try:
        with warnings.catch_warnings():
            # The trainer will say it.
            warnings.simplefilter("ignore")
            _, _, device = parse_device_args(
                accelerator, devices, return_device="torch"
            )
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"accelerator={accelerator!r}, devices={devices!r} cannot be used ({first_line(error)}): leave them out."
        ) from error
    return torch.device(device)


@contextmanager
def compiled(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """Compile the encoder's training steps inside the context.

    Parameters
    ----------
    encoder
        The encoder. The embedding is not compiled: it draws other gene sets at each step.
    device
        Device of the training.

    Warns
    -----
    UserWarning
        If torch.compile does not work; training then goes on without it.
    """
    why_not = ""
    try:
        # A tiny function first: a missing or broken compiler may raise anything.
        torch.compile(torch.neg)(torch.ones(2, device=device))
    except Exception as error:
        why_not = first_line(error)
    if why_not:
        warn_user(
            f"compile=True has no effect ({why_not}): install a C++ compiler, or leave compile out."
        )
        yield
        return
    plain = encoder.forward
    fast = torch.compile(plain)

    def forward(tokens: Tensor, **kwargs: Any) -> Any:
        # Without gradients the encoder splits cells, which depends on the data.
        return (fast if torch.is_grad_enabled() else plain)(tokens, **kwargs)

    encoder.forward = forward  # type: ignore[method-assign] # of this encoder, in this context
    try:
        yield
    finally:
        del encoder.forward


def first_line(error: BaseException) -> str:
    """Beginning of what a library says."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
