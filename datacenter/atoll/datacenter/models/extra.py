"""Auxiliary losses that a part of a model adds to the model's own loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class ExtraLoss(nn.Module):
    """Adds a loss to training: hidden states pass through unchanged, and the backward pass includes the loss.

    The loss therefore need not be sent to the last stage of a pipeline (like ``MoEAuxLossAutoScaler`` of Megatron-LM).
    Like the model's own loss, it is a sum over the sequences of this call, and is divided by the same number: the
    counted tokens of the global batch. The loss that a step reports does not contain it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.share: Tensor | None = None

    def forward(self, hidden: Tensor, loss: Tensor) -> Tensor:
        """Return ``hidden``, with the loss attached to its gradient.

        Args:
            hidden: a tensor that the model's outputs depend on.
            loss: scalar.
        """
        scaled = loss if self.share is None else loss * self.share
        injected: Tensor = _Injected.apply(hidden, scaled)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return injected


def divide_extra_losses(parts: Iterable[nn.Module], divisor: float | Tensor, device: torch.device) -> None:
    """Set the divisor of a step's auxiliary losses; call before the step's passes."""
    share = torch.as_tensor(1.0 / divisor, dtype=torch.float32, device=device)
    for part in parts:
        for module in part.modules():
            if isinstance(module, ExtraLoss):
                module.share = share


class _Injected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        ctx.loss_like = {"dtype": loss.dtype, "device": loss.device}
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        return gradient, torch.ones((), **ctx.loss_like)
