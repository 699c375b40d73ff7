"""Passes of a model cut into stages: ``torch.distributed.pipelining`` runs them in the schedule's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle, get_schedule_class
from torch.distributed.tensor import DTensor

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.parallel.loss import Loss
from atoll.datacenter.parallel.passes import document_inputs
from atoll.datacenter.parallel.pipeline.busy import BusyClock
from atoll.datacenter.parallel.pipeline.chain import Chain
from atoll.datacenter.parallel.pipeline.deal import micro_batches
from atoll.datacenter.parallel.pipeline.kinds import KINDS

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.parallel.passes import MicroBatch
    from atoll.datacenter.parallel.pipeline.deal import Deal


class PipelinePasses:
    """Passes of this rank's stages; see ``parallel.passes.Passes``.

    Gradients are sums: PyTorch divides them by the number of micro-batches only if asked to.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        deal: Deal,
        spec: ModelSpec,
        job: SiloJob,
        meshes: Meshes,
        device: torch.device,
    ) -> None:
        """Set up the schedule; nothing is sent yet.

        Args:
            modules: stages of this rank by number, cut and filled.
            deal: assignment of the whole model.
            spec: spec of the model.
            job: validated against the mesh.
            meshes: device meshes of the world.
            device: device of this rank.
        """
        self._modules = dict(sorted(modules.items()))
        self._is_first = 0 in modules
        self._is_last = deal.stages - 1 in modules
        self._loss_of = Loss.of(job, spec, meshes)
        self._device, self._job = device, job
        self._micro_batches = micro_batches(job, meshes.dims.batch)
        self._divisor: float | Tensor = 1.0
        self._deal, self._group = deal, meshes.dense["pp"].get_group()
        stages = [
            _Stage(module, number, deal.stages, device, group=self._group) for number, module in self._modules.items()
        ]
        self._clock = BusyClock(device)
        for stage in stages:
            self._clock.listen(stage)
        kind = KINDS[job.pipeline.schedule]
        make: Callable[..., PipelineScheduleSingle | PipelineScheduleMulti] = get_schedule_class(kind.torch_name)
        self._schedule = make(
            stages if kind.several_stages else stages[0], self._micro_batches, loss_fn=self._loss, scale_grads=False
        )

    @property
    def parts(self) -> Sequence[nn.Module]:
        """This rank's stages, in the model's order."""
        return tuple(self._modules.values())

    def __call__(self, batches: Sequence[MicroBatch], divisor: float | Tensor) -> Tensor:
        """See ``parallel.passes.Passes``.

        Raises:
            TrainingError: if the number of micro-batches is not the one that the schedule was made for.
        """
        if len(batches) != self._micro_batches:
            raise TrainingError(
                f"{len(batches)} micro-batches, but the pipeline's schedule was made for {self._micro_batches}"
            )
        self._divisor = divisor
        inputs = (torch.cat([batch.tokens for batch in batches]),) if self._is_first else ()
        target = torch.cat([batch.labels for batch in batches]) if self._is_last else None
        documents: dict[str, Any] = dict(
            document_inputs(batches, self._job)
        )  # every stage gets the inputs of its micro-batch
        losses: list[Tensor] = []
        with self._clock.step(), self._loss_of.context():
            self._schedule.step(*inputs, target=target, losses=losses, return_outputs=False, **documents)
        return sum((_local(loss.detach()) for loss in losses), torch.zeros((), device=self._device))

    def evaluate(self, batches: Sequence[MicroBatch]) -> Tensor:
        """See ``parallel.passes.Passes``."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        chain = Chain(self._modules, self._deal, self._group, self._device)
        with self._loss_of.context():
            for batch in batches:
                outputs = chain(batch.tokens, document_inputs((batch,), self._job))
                if outputs is not None:
                    total += _local(self._loss_of(outputs, batch.labels, 1.0))
                del outputs  # before those of the next micro-batch are made
        chain.close()
        return total

    def idle_share(self) -> float:
        """Return the share of the last step's passes in which a rank waited, mean over all ranks; collective."""
        share = torch.tensor(self._clock.idle_share(), device=self._device)
        dist.all_reduce(share)
        return share.item() / dist.get_world_size()

    def _loss(self, outputs: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        return self._loss_of(outputs, labels, self._divisor)


class _Stage(PipelineStage):
    """A stage whose neighbour may be on the same rank, as in V schedules."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Return the first messages, which connect ranks in torch 2.11 and 2.12; gloo cannot connect to itself."""
        found: list[dist.P2POp] = super()._get_init_p2p_neighbors_ops()
        return [one for one in found if one.group_peer != self.group_rank]


def _local(loss: Tensor) -> Tensor:
    return loss.full_tensor() if isinstance(loss, DTensor) else loss
