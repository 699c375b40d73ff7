"""Passes of a step of DP-SGD (Abadi et al. 2016, algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from atoll.datacenter.privacy.clipping import make_clipper
from atoll.datacenter.privacy.noise import add_noise

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.privacy import PrivacySection
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.parallel.passes import MicroBatch
    from atoll.datacenter.privacy.budget import Budget
    from atoll.datacenter.privacy.secret import Secret


@dataclass(frozen=True)
class Mechanism:
    """Noise, secret and cost of a private job.

    Attributes:
        budget: budget of the job.
        secret: secret of the world.
        tokens: labels of each sequence, whether or not they count.
    """

    budget: Budget
    secret: Secret
    tokens: int = 1


class PrivatePasses:
    """Leaves ``(sum of clipped gradients + noise) / expected samples`` in the parameters.

    A sample is a row of a micro-batch. Its loss is divided by its length, a constant, so that the clipping norm has the
    same meaning for all lengths. The sum is divided by the expected number of samples of a step, never by the actual
    one, which is private. Micro-batches only bound memory: noise is added once, to the sum over all of them and all
    ranks.

    Args:
        module: module that is whole on this rank, or sharded by FSDP2.
        spec: spec of the model.
        job: job with ``[privacy]``.
        meshes: device meshes of the world.
        device: device of this rank.
        mechanism: noise and secret.
    """

    def __init__(
        self,
        module: nn.Module,
        spec: ModelSpec,
        job: SiloJob,
        meshes: Meshes,
        device: torch.device,
        mechanism: Mechanism,
        section: PrivacySection,
    ) -> None:
        self._module, self._spec, self._meshes, self._device = module, spec, meshes, device
        self._expected, self._limit = job.batch.global_batch, section.max_grad_norm
        self._mechanism = mechanism
        self._clipper = make_clipper(module, section)
        self._made = 0

    @property
    def parts(self) -> Sequence[nn.Module]:
        """The module, as the only part."""
        return (self._module,)

    def __call__(self, batches: Sequence[MicroBatch], divisor: float | Tensor) -> Tensor:
        """See ``parallel.passes.Passes``; the divisor is used only for the reported loss."""
        total = torch.zeros((), device=self._device)
        sums: dict[nn.Parameter, Tensor] = {}
        for batch in batches:
            losses = self._losses(batch)
            self._clipper.backward(losses / batch.labels[0].numel())
            self._collect(sums)
            total += losses.detach().sum() / divisor
        self._release(sums)
        return total

    def evaluate(self, batches: Sequence[MicroBatch]) -> Tensor:
        """See ``parallel.passes.Passes``."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for batch in batches:
            total += self._spec.loss(self._module(batch.tokens.contiguous()), batch.labels)
        return total

    def _losses(self, batch: MicroBatch) -> Tensor:
        outputs = self._module(batch.tokens.contiguous())  # Opacus' rule for embeddings needs a view of them
        rows = zip(torch.split(outputs, 1), torch.split(batch.labels, 1), strict=True)
        return torch.stack([self._spec.loss(output, label) for output, label in rows])

    def _collect(self, sums: dict[nn.Parameter, Tensor]) -> None:
        """Add up gradients outside the parameters: the next micro-batch's first pass leaves unclipped ones there."""
        for parameter in self._module.parameters():
            if parameter.grad is not None:
                sums[parameter] = sums[parameter] + parameter.grad if parameter in sums else parameter.grad
                parameter.grad = None

    def _release(self, sums: dict[nn.Parameter, Tensor]) -> None:
        for parameter, gradient in sums.items():
            parameter.grad = gradient
            if not isinstance(self._module, FSDPModule):
                dist.all_reduce(gradient, group=self._meshes.loss.get_group())
        std = self._mechanism.budget.noise_multiplier * self._limit
        add_noise(self._module.named_parameters(), std, self._mechanism.secret, f"noise/{self._made}")
        self._made += 1
        for gradient in sums.values():
            gradient.div_(self._expected)
