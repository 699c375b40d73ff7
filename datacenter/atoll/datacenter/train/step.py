"""One step of the optimiser: passes, gradient norm, clipping, update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.models.extra import divide_extra_losses
from atoll.datacenter.models.llama_spec import IGNORED_LABEL
from atoll.datacenter.parallel.context import cut_batches
from atoll.datacenter.train.experts import busiest, settle_experts
from atoll.datacenter.train.optimiser import clip, gradient_norm, lr_at

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.parallel.passes import MicroBatch, Passes
    from atoll.datacenter.train.scale import LossScale


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step; the same on every rank.

    Attributes:
        loss: mean over the counted tokens of the global batch, before the update.
        gradient_norm: norm before clipping.
        tokens: tokens counted in the global batch.
        lr: learning rate.
        skipped: whether a gradient that was not finite lowered the loss scale instead (float16).
        expert_load: tokens of the busiest expert / of the mean expert, maximum over layers; None without experts.
    """

    loss: float
    gradient_norm: float
    tokens: int
    lr: float
    skipped: bool
    expert_load: float | None = None


@dataclass
class Step:
    """Makes steps. Collective: every rank calls it with its own micro-batches.

    Attributes:
        expert_loads: choices of each expert in the last step's global batch, int64 ``[experts]`` by name of the layer;
            only layers of this rank's stages.
    """

    passes: Passes
    optimiser: torch.optim.Optimizer
    job: SiloJob
    meshes: Meshes
    scale: LossScale
    device: torch.device
    expert_loads: dict[str, Tensor] = field(default_factory=dict)

    def __call__(self, number: int, batches: Sequence[MicroBatch]) -> StepResult:
        """Make one step.

        Args:
            number: number of the step, from 0; selects the learning rate.
            batches: this rank's micro-batches, of whole sequences.

        Raises:
            TrainingError: if no token of the batch counts, or loss or gradient are not finite (with float16 the step is
                skipped instead).
        """
        lr = lr_at(number, self.job.job.steps, self.job.optimiser.lr, self.job.schedule)
        batches = cut_batches(batches, self.job, self.meshes)
        tokens = self._counted(batches)
        if not tokens and self.job.privacy is None:  # a Poisson sample may be empty, but its noise counts
            raise TrainingError(f"step {number}: no label of the global batch counts (all are {IGNORED_LABEL})")
        divide_extra_losses(self.passes.parts, tokens / self.scale.scale, self.device)
        loss = self._summed(self.passes(batches, max(tokens, 1) / self.scale.scale))
        self.expert_loads = settle_experts(self.passes.parts, self.meshes, self.device)
        load = busiest(self.expert_loads, self.meshes, self.device)
        norm = gradient_norm(self._parameters(), self._stages())
        loss_value, norm_value = (torch.stack((loss, norm.to(loss.device))) / self.scale.scale).tolist()
        finite = norm_value < float("inf")
        if not finite and not self.scale.dynamic:
            raise TrainingError(
                f"step {number}: loss {loss_value}, gradient norm {norm_value}: not finite; "
                f"lower optimiser.lr, now {lr:g}, or check the data of this step"
            )
        if finite:
            self._update(lr, norm)
        self.optimiser.zero_grad(set_to_none=True)
        self.scale.update(finite=finite)
        return StepResult(loss_value, norm_value, tokens, lr, skipped=not finite, expert_load=load)

    def _counted(self, batches: Sequence[MicroBatch]) -> int:
        counted = sum((batch.labels != IGNORED_LABEL).sum() for batch in batches)
        total = torch.as_tensor(counted, dtype=torch.int64, device=self.device)
        dist.all_reduce(total, group=self.meshes.loss.get_group())
        return int(total)

    def _summed(self, loss: Tensor) -> Tensor:
        dist.all_reduce(loss, group=self.meshes.loss.get_group())
        if (stages := self._stages()) is not None:
            dist.all_reduce(loss, group=stages.get_group())
        return loss

    def _stages(self) -> DeviceMesh | None:
        return self.meshes.dense["pp"] if self.meshes.dims.pp > 1 else None

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for part in self.passes.parts for parameter in part.parameters()]

    def _update(self, lr: float, norm: Tensor) -> None:
        parameters = self._parameters()
        if self.scale.scale != 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.scale.scale)
        if self.job.optimiser.max_grad_norm is not None:
            clip(parameters, norm / self.scale.scale, self.job.optimiser.max_grad_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.step()
