"""A worker's steps: those of a single trainer, except where parameters come from and where the gradient goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from atoll.datacenter.checkpoint import Checkpoints, TrainingState
from atoll.datacenter.data import Loader
from atoll.datacenter.job.operation import CheckpointSection
from atoll.datacenter.job.parallel import DataParallelSection
from atoll.datacenter.mesh import Meshes, ParallelDims, World
from atoll.datacenter.metrics.meter import Meter
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.asynchrony.channel import Push, WorkersEnd
from atoll.datacenter.train.asynchrony.vector import read_gradients, write
from atoll.datacenter.train.build import make_step
from atoll.datacenter.train.collector import Collector
from atoll.datacenter.train.launched import Launched, StepResult
from atoll.datacenter.train.optimiser import gradient_norm, lr_at
from atoll.datacenter.train.step import Step
from atoll.datacenter.train.trainer import Trainer, open_tracing
from atoll.datacenter.train.upkeep import Upkeep

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.data import Batches
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.metrics import Sinks
    from atoll.datacenter.parallel.passes import MicroBatch
    from atoll.datacenter.train.pulse import Pulse


class Exchange(Protocol):
    """Exchanges a worker's gradient, instead of summing gradients over ranks."""

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """Prepare for the passes; may change the parameters."""
        ...

    def end(self, step: WorkerStep, result: StepResult, norm: Tensor) -> None:
        """Finish after the passes, with the gradient of the mean over this worker's tokens in the parameters."""
        ...


@dataclass
class WorkerStep(Step):
    """A step of one worker; no other worker waits for it.

    Attributes:
        exchange: where its gradient goes.
    """

    exchange: Exchange = field(kw_only=True)

    @property
    def waits(self) -> bool:
        """True: the next step may need what other workers have made of this one."""
        return True

    def __call__(self, number: int, batches: Sequence[MicroBatch]) -> StepResult:
        """Run one step.

        Raises:
            TrainingError: if the gradient is not finite, or as the exchange raises it.
        """
        self.exchange.begin(self.parameters)
        lr = lr_at(number, self.job.job.steps, self.job.optimiser.lr, self.job.schedule)
        loss, tokens = self._passes(batches)
        norm = gradient_norm(self.parameters, None).to(loss.device)
        figures = torch.stack((loss.double(), norm.double(), tokens.double(), torch.zeros_like(loss).double()))
        result = Launched(number, lr, figures, may_be_empty=True, may_skip=False).result()
        self.exchange.end(self, result, norm)
        self.optimiser.zero_grad(set_to_none=True)
        return result


@dataclass(frozen=True)
class ToServer:
    """Pulls the parameters from a parameter server, and pushes the gradient of the sum of losses."""

    channel: WorkersEnd

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """See ``Exchange``."""
        write(self.channel.pull(), parameters)

    def end(self, step: WorkerStep, result: StepResult, norm: Tensor) -> None:
        """See ``Exchange``."""
        del norm
        gradient = read_gradients(step.parameters, self.channel.buffer).mul_(result.tokens)
        self.channel.push(Push(gradient, result.tokens, result.loss * result.tokens))


@dataclass(frozen=True)
class ToSharedMemory:
    """Takes a step of the worker's own optimiser, with its share of the gradient, in memory that all workers share."""

    workers: int

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """See ``Exchange``."""

    def end(self, step: WorkerStep, result: StepResult, norm: Tensor) -> None:
        """See ``Exchange``."""
        for parameter in step.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(self.workers)
        step.update(result.lr, norm / self.workers)


def alone(job: SiloJob) -> SiloJob:
    """Return the job of one worker: a whole model, and no checkpoints of its own."""
    changed = {"checkpoint": CheckpointSection(), "data_parallel": DataParallelSection(method="ddp")}
    return job.model_copy(update=changed)


def make_worker_step(
    job: SiloJob, meshes: Meshes, device: torch.device, make_exchange: Callable[[list[nn.Parameter]], Exchange]
) -> WorkerStep:
    """Build a worker's model and passes, with initial weights that are the same on every rank.

    Args:
        job: the job.
        meshes: ``Meshes.alone``.
        device: device of this rank.
        make_exchange: makes the exchange, given the parameters.
    """
    made = make_step(alone(job), spec_of(job.model), meshes, device)
    exchange = make_exchange(made.parameters)
    return WorkerStep(made.passes, made.optimiser, made.job, meshes, made.scale, device, exchange=exchange)


@contextmanager
def open_worker(
    job: SiloJob,
    folder: Path,
    world: World,
    step: WorkerStep,
    share: tuple[Batches, int, int],
    pulse: Pulse,
    sinks: Sinks,
) -> Iterator[Trainer]:
    """Open the trainer of a worker: the loop of synchronous training, over its share of each global batch.

    Args:
        job: the job.
        folder: folder of the job file.
        world: world of all ranks.
        step: makes its steps.
        share: batches of the job, number of this worker, and number of workers.
        pulse: takes reports of where this rank is.
        sinks: take its records.
    """
    batches, worker, workers = share
    mine = alone(job)
    pin = step.device.type == "cuda"
    with (
        Loader(batches, worker, workers, pin=pin) as loader,
        open_tracing(job, folder, world) as tracing,
        Collector(job.processes.collect_every_steps).running() as collector,
    ):
        yield Trainer(
            job=mine,
            world=World(0, 1, world.local_rank, step.device),
            step=step,
            loader=loader,
            state=TrainingState(step.passes.parts, step.optimiser, step.scale, loader, {}),
            checkpoints=Checkpoints.open(mine, folder, world, ParallelDims()),
            upkeep=Upkeep((), 0, None, loader, step.device),
            sinks=sinks,
            meter=Meter(step.device, together=False),
            tracing=tracing,
            pulse=pulse,
            collector=collector,
        )
