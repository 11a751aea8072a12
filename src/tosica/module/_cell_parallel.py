"""Apply a network to parts of a minibatch on several threads, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tosica._parallel import thread_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Cells of a part. It does not depend on the number of threads, so that gradients do not either.
CELLS_PER_PART = 16


def apply_in_parts(function: Callable[[Tensor], Tensor], x: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """Apply a function to the cells of a minibatch, part by part, with gradients.

    Parameters
    ----------
    function
        Maps cells to cells, each by itself.
    x
        Input, shape ``(n_cells, ...)``.
    parameters
        Tensors that the function depends on, besides ``x``.

    Returns
    -------
    What ``function(x)`` returns, up to rounding errors that do not depend on the number of threads.
    """
    return _ApplyInParts.apply(function, x, *parameters)  # type: ignore[no-any-return]


class _ApplyInParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
        def call(part: Tensor) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                part = part.requires_grad_()
                return part, function(part)

        # Each part has a graph of its own, so that a thread can go backward through it.
        ctx.parts = list(thread_map(call, x.detach().split(CELLS_PER_PART)))
        ctx.parameters = parameters
        return torch.cat([output.detach() for _, output in ctx.parts])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        def differentiate(part: tuple[tuple[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
            (given, output), slope_of_part = part
            return torch.autograd.grad(output, (given, *ctx.parameters), slope_of_part)

        slopes = slope.split(CELLS_PER_PART)
        parts = list(thread_map(differentiate, zip(ctx.parts, slopes, strict=True)))
        del ctx.parts
        of_x, *of_parameters = zip(*parts, strict=True)
        return None, torch.cat(of_x), *(torch.stack(each).sum(0) for each in of_parameters)
