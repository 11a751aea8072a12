"""Choose a device, and compile the encoder for it."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from tosica.module import Encoder


def find_device(accelerator: str, device: int | str) -> torch.device:
    """Device for the arguments ``accelerator`` and ``device`` of :meth:`tosica.TOSICA.load`.

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
        warnings.warn(
            f"compile=True has no effect, because torch.compile does not work here ({reason}): "
            "install a C++ compiler, or leave compile out.",
            UserWarning,
            stacklevel=4,
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
