"""Backward passes that clip each sample's gradient, by Opacus' rules for layers (Yousefpour et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from atoll.datacenter.privacy.adapters import register
from atoll.datacenter.privacy.budget import opacus_module

if TYPE_CHECKING:
    from atoll.datacenter.job.privacy import PrivacySection

_TINY = 1e-6
"""Added to norms against division by zero; Opacus' own value."""


class Clipper(Protocol):
    """Computes the sum of clipped gradients and leaves it in the parameters.

    A sample whose gradient is not finite contributes nothing, because no factor clips it: 0 times infinity is NaN.
    """

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass.

        Args:
            losses: float32 ``[samples]``; each depends on one row of the inputs only.
        """
        ...


def make_clipper(module: nn.Module, section: PrivacySection) -> Clipper:
    """Make a clipper for a module that is whole on this rank, or sharded by FSDP2.

    Raises:
        MissingExtraError: if Opacus is not installed.
    """
    register()
    return _Ghost(module, section) if section.mode == "ghost" else _Kept(module, section)


def unsupported(module: nn.Module) -> list[str]:
    """List layers for which Opacus' rules cannot separate samples, each with the reason.

    Args:
        module: model on any device, e.g. meta.

    Raises:
        MissingExtraError: if Opacus is not installed.
    """
    register()
    rules = opacus_module("grad_sample").GradSampleModule.GRAD_SAMPLERS
    found = [str(error) for error in opacus_module("validators").ModuleValidator.validate(module, strict=False)]
    for name, layer in module.named_modules():
        trained = any(parameter.requires_grad for parameter in layer.parameters(recurse=False))
        if trained and type(layer) not in rules:
            found.append(f"{name or 'the model itself'} is a {type(layer).__name__}, for which Opacus has no rule")
    return found


class _Ghost:
    """Computes norms from activations and their gradients, then runs a second pass with losses weighted by them.

    The gradient of a single sample is never materialised (Li et al. 2022, section 4). Costs a second backward pass, and
    with FSDP2 its collectives twice.
    """

    def __init__(self, module: nn.Module, section: PrivacySection) -> None:
        self._parameters = list(module.parameters())
        hooks = opacus_module("grad_sample.grad_sample_module_fast_gradient_clipping")
        kind = hooks.GradSampleHooksFastGradientClipping
        settings: dict[str, Any] = {"loss_reduction": "sum", "max_grad_norm": section.max_grad_norm}
        if isinstance(module, FSDPModule):
            sharded = opacus_module("grad_sample.grad_sample_module_fast_gradient_clipping_fsdp")
            kind = sharded.GradSampleHooksFastGradientClippingFSDP
        self._hooks = kind(module, **settings)

    def backward(self, losses: Tensor) -> None:
        """See ``Clipper``."""
        losses.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        _drop(self._parameters)
        weights = self._hooks.get_clipping_coef().nan_to_num(nan=0.0)  # 0 for an infinite norm
        self._hooks.disable_hooks()
        (weights * losses).sum().backward()
        self._hooks.enable_hooks()


class _Kept:
    """Keeps the gradient of every sample until all norms are known: a model's worth of memory for each sample."""

    def __init__(self, module: nn.Module, section: PrivacySection) -> None:
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._limit = section.max_grad_norm
        self._hooks = opacus_module("grad_sample").GradSampleHooks(module, loss_reduction="sum")

    def backward(self, losses: Tensor) -> None:
        """See ``Clipper``."""
        losses.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        samples: list[Tensor] = [parameter.grad_sample for parameter in self._trained]  # type: ignore[attr-defined]  # Opacus puts it there
        norms = torch.stack([sample.flatten(1).norm(dim=1) for sample in samples]).norm(dim=0)
        weights = (self._limit / (norms + _TINY)).clamp(max=1.0).nan_to_num(nan=0.0)
        endless = ~norms.isfinite()
        for parameter, sample in zip(self._trained, samples, strict=True):
            sample[endless] = 0.0
            parameter.grad = torch.einsum("i,i...->...", weights, sample)
            parameter.grad_sample = None  # type: ignore[attr-defined]  # as above


def _drop(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
