"""Gradients of single samples for layers with adapters, for which Opacus has no rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atoll.datacenter.models.lora import LoraLinear
from atoll.datacenter.privacy.budget import opacus_module


def register() -> None:
    """Register the rule with Opacus; a second call has no effect.

    Raises:
        MissingExtraError: if Opacus is not installed.
    """
    opacus_module("grad_sample").register_grad_sampler(LoraLinear)(adapter_gradients)


def adapter_gradients(
    layer: LoraLinear, activations: Sequence[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Return the gradients of each sample's summed loss.

    For ``W x + scale * B A x`` with the output's gradient g they are ``scale * g (A x)^T`` for B and
    ``scale * B^T g x^T`` for A, summed over the sample's tokens; W is frozen. They are as small as the adapters, so
    ghost clipping needs no separate rule for their norms.

    Args:
        layer: the layer.
        activations: its input, ``[samples, ..., in_features]``.
        backprops: gradient of its output, ``[samples, ..., out_features]``.
    """
    inputs, scaled = activations[0].to(backprops.dtype), backprops * layer.scale
    low, back = inputs @ layer.lora_a.t(), scaled @ layer.lora_b
    return {
        layer.lora_a: torch.einsum("n...i,n...j->nij", back, inputs),
        layer.lora_b: torch.einsum("n...i,n...j->nij", scaled, low),
    }
