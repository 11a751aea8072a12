"""Choose a device, and compile the encoder for it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.accelerators import AcceleratorRegistry

from tosica._checks import Either, Integer, OneOf
from tosica._settings import warn_user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from tosica.module import Encoder

ACCELERATOR = OneOf("auto", "gpu", *AcceleratorRegistry.available_accelerators())
DEVICE = Either(first=OneOf("auto"), second=Integer(least=0))


def find_device(accelerator: str, device: int | str) -> torch.device:
    """Device for the arguments ``accelerator`` and ``device`` of :meth:`tosica.TOSICA.load`.

    Raises
    ------
    TypeError
        If an argument is of the wrong type.
    ValueError
        If there is no such accelerator, or a GPU is asked for where torch finds none.
    """
    ACCELERATOR.check("accelerator", accelerator)
    DEVICE.check("device", device)
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    kind = "cuda" if accelerator in ("auto", "gpu") else accelerator
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"accelerator={accelerator!r} was asked for, but torch finds no GPU here: pass accelerator='cpu' or 'auto'."
        )
    return torch.device(kind if device == "auto" else f"{kind}:{device}")


def check_device(device: str | int | torch.device) -> torch.device:
    """Device for the argument of :meth:`tosica.TOSICA.to_device`.

    Raises
    ------
    TypeError
        If it is neither a name, nor the number of a GPU, nor a device of torch.
    ValueError
        If torch does not know the name, or a GPU is asked for where torch finds none.
    """
    expected = "device must be 'cpu', 'cuda', 'cuda:0' and so on, or the number of a GPU"
    if isinstance(device, bool) or not isinstance(device, str | Integral | torch.device):
        raise TypeError(f"{expected}, not {device!r:.60}.")
    try:
        found = torch.device("cuda", int(device)) if isinstance(device, Integral) else device
        found = torch.device(found)
    except RuntimeError as error:
        raise ValueError(f"{expected}, not {device!r:.60}.") from error
    n_gpus = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= n_gpus:
        there = f"GPUs up to number {n_gpus - 1}" if n_gpus else "no GPU"
        cure = "'cpu', or one of these numbers" if n_gpus else "'cpu'"
        raise ValueError(f"device={device!r} was asked for, but torch finds {there} here: pass {cure}.")
    return found


def check_devices(devices: int | list[int] | str, device: torch.device) -> None:
    """Check what is asked for as the devices of a training.

    Parameters
    ----------
    devices
        Number of devices, or their numbers.
    device
        Of the same kind. On the CPU, which each process uses a part of, there are any number.

    Raises
    ------
    TypeError
        If it is neither a whole number, nor a list of them, nor a string.
    ValueError
        If it is a number below 1 other than -1, a string that lists no numbers, or if there are
        fewer GPUs.
    """
    asked = "devices must be 'auto', a number of devices of at least 1, -1 for all, or a list"
    if isinstance(devices, str):
        if devices != "auto" and not re.fullmatch(r"-1|\d+(,\d+)*", devices.replace(" ", "")):
            raise ValueError(f"{asked}, not {devices!r}.")
        if devices == "auto":
            return
        numbers = [int(one) for one in devices.split(",")]
        devices = numbers if len(numbers) > 1 else numbers[0]
    listed = devices if isinstance(devices, list | tuple) else [devices]
    if any(isinstance(one, bool) or not isinstance(one, Integral) for one in listed):
        raise TypeError(f"{asked}, not {devices!r}.")
    if isinstance(devices, Integral) and devices != -1 and int(devices) < 1:
        raise ValueError(f"{asked}, not {devices!r}.")
    if device.type == "cuda" and devices != -1:
        n_gpus = torch.cuda.device_count()
        n_asked = max(listed) + 1 if isinstance(devices, list | tuple) else int(devices)
        if n_asked > n_gpus:
            raise ValueError(
                f"devices={devices!r} was asked for, but torch finds {n_gpus} "
                f"GPU{'s' if n_gpus > 1 else ''} here: pass at most as many."
            )


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
    reason = _why_not(device)
    if reason:
        warn_user(
            f"compile=True has no effect, because torch.compile does not work here ({reason}): "
            "install a C++ compiler, or leave compile out."
        )
        yield
        return
    plain = encoder.forward
    fast = torch.compile(plain)

    def forward(tokens: Tensor) -> Tensor:
        # Without gradients the encoder splits cells, which depends on the data.
        return fast(tokens) if torch.is_grad_enabled() else plain(tokens)

    encoder.forward = forward  # type: ignore[method-assign] # of this encoder, in this context
    try:
        yield
    finally:
        del encoder.forward


def _why_not(device: torch.device) -> str:
    """Reason why torch.compile fails on a tiny function; empty if it works."""
    try:
        torch.compile(torch.neg)(torch.ones(2, device=device))
    # A missing or broken compiler may raise anything.
    except Exception as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""
