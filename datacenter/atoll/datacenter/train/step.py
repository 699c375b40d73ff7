"""One step of the optimiser: passes, gradient norm, clipping, update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atoll.datacenter.models.extra import divide_extra_losses
from atoll.datacenter.models.llama_spec import IGNORED_LABEL
from atoll.datacenter.parallel.context import cut_batches
from atoll.datacenter.parallel.float8 import scale_weights
from atoll.datacenter.parallel.passes import PlainPasses
from atoll.datacenter.train.brake import Brake
from atoll.datacenter.train.experts import busiest, settle_experts
from atoll.datacenter.train.launched import Launched, StepResult
from atoll.datacenter.train.optimiser import clip, gradient_norm, lr_at

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from atoll.datacenter.elastic.replicas.member import Member
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.parallel.passes import MicroBatch, Passes
    from atoll.datacenter.train.scale import LossScale


@dataclass
class Step:
    """Runs steps. Collective: every rank calls it with its own micro-batches.

    Attributes:
        member: this rank in its replica group, with recovery in place: gradients then become means over groups.
        rows_of: this rank's micro-batches of a step, from 0, in place of another replica group; with speculation.
        expert_loads: choices of each expert in the last step's global batch, int64 ``[experts]`` by name of the layer;
            only layers of this rank's stages.
    """

    passes: Passes
    optimiser: torch.optim.Optimizer
    job: SiloJob
    meshes: Meshes
    scale: LossScale
    device: torch.device
    member: Member | None = None
    rows_of: Callable[[int, int], Sequence[MicroBatch]] | None = None
    expert_loads: dict[str, Tensor] = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether a step must finish before the next one is queued."""
        return self.scale.dynamic or self.member is not None

    def __call__(self, number: int, batches: Sequence[MicroBatch]) -> StepResult:
        """Run one step, and wait for its result before the update.

        Args:
            number: number of the step, from 0; selects the learning rate.
            batches: this rank's micro-batches, of whole sequences.

        Raises:
            TrainingError: if no token of the batch counts, or loss or gradient are not finite (with float16 the step is
                skipped instead). The parameters are then those before the step.
            BehindError: if this rank's replica group has missed too many steps.
        """
        launched, lr, norm = self._gradient(number, batches)
        result = launched.result()
        if not result.skipped:
            self.update(lr, norm)
        self.optimiser.zero_grad(set_to_none=True)
        self.scale.update(finite=not result.skipped)
        return result

    def launch(self, number: int, batches: Sequence[MicroBatch]) -> Launched:
        """Queue one step on the device, update included, without waiting for anything; arguments as of a call.

        ``Launched.result`` raises what a call raises, but by then the parameters have been updated: the caller must ask
        for it before it keeps or sends them. Skipping the update on the device would need a special kernel for each
        optimiser; a job with such a step ends in any case.

        Raises:
            ValueError: if the loss scale is dynamic: the next step depends on this one's result.
        """
        if self.scale.dynamic:
            raise ValueError("a step with a dynamic loss scale must be waited for: call it instead")
        launched, lr, norm = self._gradient(number, batches)
        self.update(lr, norm)
        self.optimiser.zero_grad(set_to_none=True)
        return launched

    def _gradient(self, number: int, batches: Sequence[MicroBatch]) -> tuple[Launched, float, Tensor]:
        """Queue the passes and the sums of their figures; return the sums, the learning rate and the gradient norm."""
        lr = lr_at(number, self.job.job.steps, self.job.optimiser.lr, self.job.schedule)
        if self.member is None:
            loss, tokens = self._passes(batches)
        else:
            loss, tokens = self._averaged(self.member, number, batches)
        self.expert_loads = settle_experts(self.passes.parts, self.meshes, self.device)
        load = busiest(self.expert_loads, self.meshes, self.device)
        norm = gradient_norm(self.parameters, self._stages()).to(loss.device)
        scaled = (torch.stack((loss, norm)) / self.scale.scale).double()
        figures = torch.cat((scaled, torch.stack((tokens.double(), load))))
        private = self.job.privacy is not None  # a Poisson sample may be empty, but its noise counts
        return Launched(number, lr, figures, may_be_empty=private, may_skip=self.scale.dynamic), lr, norm

    def _passes(
        self, batches: Sequence[MicroBatch], brake: Callable[[Sequence[MicroBatch]], Sequence[MicroBatch]] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queue the passes; return the mean loss times the loss scale, and counted tokens."""
        batches = cut_batches(batches, self.job, self.meshes)
        tokens = self._counted(batches)
        batches = batches if brake is None else brake(batches)
        divisor = tokens.clamp(min=1).to(torch.float32) / self.scale.scale
        divide_extra_losses(self.passes.parts, divisor, self.device)
        if self.job.precision.float8_gather:
            scale_weights(self.passes.parts)
        return self._summed(self.passes(batches, divisor)), tokens

    def _averaged(self, member: Member, number: int, batches: Sequence[MicroBatch]) -> tuple[Tensor, Tensor]:
        """Run the passes and average over replica groups; no passes for a step that was made without this group."""
        mean = member.missed(number) if self.job.faults.leaves_late_behind else None
        if mean is None:
            figures = self._figures(*self._passes(batches))
            mean = member.average(number, *figures, partial(self._run_for, member, number))
        scaled = torch.tensor(mean.quorum.loss * self.scale.scale, device=self.device)
        return scaled, torch.tensor(mean.quorum.tokens, device=self.device)

    def _run_for(self, member: Member, number: int, late: int) -> tuple[int, float] | None:
        """Compute the gradient of a late group; None if the step was made meanwhile. Only plain passes stop early."""
        if self.rows_of is None:
            raise ValueError("a step with speculation needs the rows of other replica groups: set rows_of")
        self.optimiser.zero_grad(set_to_none=True)
        brake = Brake(lambda: member.is_made(number))
        breakable = isinstance(self.passes, PlainPasses)
        loss, tokens = self._passes(self.rows_of(number, late), brake if breakable else None)
        return None if brake.pulled else self._figures(loss, tokens)

    def _figures(self, loss: Tensor, tokens: Tensor) -> tuple[int, float]:
        return int(tokens.item()), loss.item() / self.scale.scale

    def _counted(self, batches: Sequence[MicroBatch]) -> Tensor:
        counted = sum((batch.labels != IGNORED_LABEL).sum() for batch in batches)
        total = torch.as_tensor(counted, dtype=torch.int64, device=self.device)
        dist.all_reduce(total, group=self.meshes.loss.get_group())
        return total

    def _summed(self, loss: Tensor) -> Tensor:
        dist.all_reduce(loss, group=self.meshes.loss.get_group())
        if (stages := self._stages()) is not None:
            dist.all_reduce(loss, group=stages.get_group())
        return loss

    def _stages(self) -> DeviceMesh | None:
        return self.meshes.dense["pp"] if self.meshes.dims.pp > 1 else None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters of this rank."""
        return [parameter for part in self.passes.parts for parameter in part.parameters()]

    def update(self, lr: float, norm: Tensor) -> None:
        """Clip the gradients by the given norm, and take a step of the optimiser."""
        parameters = self.parameters
        if self.scale.scale != 1.0:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.scale.scale)
        if self.job.optimiser.max_grad_norm is not None:
            clip(parameters, norm / self.scale.scale, self.job.optimiser.max_grad_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.step()
