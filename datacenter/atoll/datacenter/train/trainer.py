"""The loop: batches in, steps made, records told, checkpoints kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.checkpoint import Checkpoints, RandomState, TrainingState
from atoll.datacenter.data import Loader, largest_over, open_job_batches
from atoll.datacenter.mesh import Meshes
from atoll.datacenter.mesh.validate import check_layout
from atoll.datacenter.metrics import StepRecord
from atoll.datacenter.metrics.meter import Meter
from atoll.datacenter.metrics.opening import open_sinks
from atoll.datacenter.metrics.tracing import Tracing
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.pipeline.passes import PipelinePasses
from atoll.datacenter.privacy import open_private
from atoll.datacenter.train.build import make_step
from atoll.datacenter.train.facts import facts_of
from atoll.datacenter.train.upkeep import Upkeep, hook_states

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.data import Batch
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import World
    from atoll.datacenter.metrics import Sinks
    from atoll.datacenter.privacy import Mechanism
    from atoll.datacenter.train.pulse import Pulse
    from atoll.datacenter.train.step import Outcome, Step


@dataclass(frozen=True, slots=True)
class Summary:
    """How a job ended; the same on every rank.

    Attributes:
        steps: made since the job began, by earlier processes too.
        total_steps: that the job asks for; fewer were made if it was told to stop.
        tokens: counted since the job began.
        loss: of the last step; None if there was nothing left to do.
        resumed_at: steps that a checkpoint had; None if the job began anew.
    """

    steps: int
    total_steps: int
    tokens: int
    loss: float | None
    resumed_at: int | None

    @property
    def finished(self) -> bool:
        """Whether all steps were made; a checkpoint may have had more than the job now asks for."""
        return self.steps >= self.total_steps


@dataclass
class Trainer:
    """One rank's part of a job. ``train`` runs it; who drives it step by step takes ``open_trainer``.

    Attributes:
        step: makes steps.
        loader: this rank's batches.
        state: what a checkpoint keeps.
        checkpoints: where.
        mechanism: of a job with ``[privacy]``.
        upkeep: between steps.
    """

    job: SiloJob
    world: World
    step: Step
    loader: Loader
    state: TrainingState
    checkpoints: Checkpoints
    upkeep: Upkeep
    sinks: Sinks
    meter: Meter
    tracing: Tracing
    pulse: Pulse
    mechanism: Mechanism | None = None

    def run(self) -> Summary:
        """Make steps until the last one, or until the job shall stop; then a last checkpoint."""
        resumed_at = self.checkpoints.resume(self.state)
        outcome: Outcome | None = None
        while self.state.step < self.job.job.steps:
            outcome = self.advance()
            if self.pulse.stops_after(self.state.step):
                break
        if outcome is not None:
            self.pulse.enter(self.state.step, "last checkpoint")
            self.checkpoints.save(self.state.step, self.state)
        loss = None if outcome is None else outcome.loss
        return Summary(self.state.step, self.job.job.steps, self.state.tokens, loss, resumed_at)

    def advance(self) -> Outcome:
        """Make one step; tell of it, and begin a checkpoint, if that is due."""
        number = self.state.step
        self.pulse.enter(number + 1, "data")
        with self.meter.waiting():
            batch = self.loader.next()
        self.pulse.enter(number + 1, "training")
        with self.tracing.step(number + 1):
            outcome = self.step(number, self._micro_batches(batch))
        self.meter.step(outcome.tokens)
        self.state.tokens += outcome.tokens
        self.upkeep.after_step(number + 1)
        self.pulse.enter(number + 1, "checkpoint")
        self.checkpoints.after_step(number + 1, self.state)
        if self.state.step % self.job.metrics.every_steps == 0 or self.state.step == self.job.job.steps:
            self._tell(outcome)
        return outcome

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        return list(batch.to(self.world.device).micro_batches(self.job.batch.micro_batch))

    def _tell(self, outcome: Outcome) -> None:
        interval = self.meter.lap()
        scale, traced, passes = self.step.scale, self.tracing.take(), self.step.passes
        self.sinks.step(
            StepRecord(
                step=self.state.step,
                steps=interval.steps,
                loss=outcome.loss,
                lr=outcome.lr,
                grad_norm=outcome.gradient_norm,
                tokens=interval.tokens,
                total_tokens=self.state.tokens,
                seconds=interval.seconds,
                data_wait_s=interval.data_wait_s,
                peak_memory_bytes=interval.peak_memory_bytes,
                loss_scale=scale.scale if scale.dynamic else None,
                expert_load=outcome.expert_load,
                bubble_share=passes.idle_share() if isinstance(passes, PipelinePasses) else None,
                communication_share=traced.communication_share if traced else None,
                exposed_share=traced.exposed_share if traced else None,
                epsilon=None if self.mechanism is None else self.mechanism.budget.epsilon(self.state.step),
            )
        )


def train(job: SiloJob, folder: Path, world: World, pulse: Pulse, *, console: bool = True) -> Summary:
    """Train a job on this rank. Collective; arguments and errors as of ``open_trainer``, and ``TrainingError``."""
    with open_trainer(job, folder, world, pulse, console=console) as trainer:
        return trainer.run()


@contextmanager
def open_trainer(job: SiloJob, folder: Path, world: World, pulse: Pulse, *, console: bool = True) -> Iterator[Trainer]:
    """One rank's part of a job, ready for its first step. Collective.

    Args:
        job: as parsed.
        folder: the job file's; its paths are relative to it.
        world: of the ranks.
        pulse: hears where this rank is.
        console: whether rank 0 prints progress on standard error.

    Raises:
        LayoutError: if the job does not fit the number of ranks.
        DataError: if its data cannot be read.
        CheckpointError: if checkpoints cannot be read or written.
    """
    dims = check_layout(job, world.size)
    torch.manual_seed(job.job.seed + world.rank)
    meshes = Meshes.build(dims, world.device.type)
    spec = spec_of(job.model)
    facts = facts_of(job, spec, dims, world.device, folder)
    with ExitStack() as stack:
        pulse.enter(0, "data")
        ranks = meshes.data["batch"]
        agree = largest_over(ranks.get_group(), world.device)
        batches, mechanism = open_private(job, open_job_batches(job, folder), world.device)
        pin = world.device.type == "cuda"
        loader = stack.enter_context(Loader(batches, ranks.get_local_rank(), dims.batch, pin=pin, agree=agree))
        pulse.enter(0, "model")
        step = make_step(job, spec, meshes, world.device, mechanism)
        extras = {"random": RandomState(world.device), **hook_states(step)}
        state = TrainingState(step.passes.parts, step.optimiser, step.scale, loader, extras)
        yield Trainer(
            job=job,
            world=world,
            step=step,
            loader=loader,
            state=state,
            checkpoints=stack.enter_context(Checkpoints.open(job, folder, world, dims)),
            upkeep=Upkeep.of(job, step, meshes, loader, world.device),
            sinks=stack.enter_context(open_sinks(job.metrics, facts, folder, rank=world.rank, console=console)),
            meter=Meter(world.device),
            tracing=stack.enter_context(_tracing(job, folder, world)),
            pulse=pulse,
            mechanism=mechanism,
        )


def _tracing(job: SiloJob, folder: Path, world: World) -> Tracing:
    traces = folder / job.metrics.profile_folder
    return Tracing(traces, rank=world.rank, steps=job.metrics.profile_steps, cuda=world.device.type == "cuda")
