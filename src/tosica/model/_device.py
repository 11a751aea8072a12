"""Find the device, and compile for it."""

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


@contextmanager
def compiled(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """Run the encoder's training steps compiled, and give it back as it was.

    Parameters
    ----------
    encoder
        What is compiled. The embedding is not: it draws other gene sets at each step.
    device
        Where it will train.

    Warns
    -----
    UserWarning
        If nothing can be compiled there; training then goes on without.
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
        # Validation has its own way, which depends on the data.
        return fast(tokens) if torch.is_grad_enabled() else plain(tokens)

    encoder.forward = forward  # type: ignore[method-assign] # of this one encoder, for a while
    try:
        yield
    finally:
        del encoder.forward


def _why_not(device: torch.device) -> str:
    """Compile next to nothing, and tell in a few words what stood in the way, if anything did."""
    try:
        torch.compile(torch.neg)(torch.ones(2, device=device))
    # Whatever a missing or broken compiler raises, training can go on without it.
    except Exception as error:
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""
