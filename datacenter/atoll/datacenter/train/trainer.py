"""The training loop: reads batches, runs steps, writes records and checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from atoll.datacenter.checkpoint import Checkpoints, RandomState, TrainingState
from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.data import Loader, largest_over, open_job_batches
from atoll.datacenter.elastic.replicas.member import BehindError
from atoll.datacenter.mesh import Meshes, seed_ranks
from atoll.datacenter.metrics import Sinks, StepRecord
from atoll.datacenter.metrics.facts import facts_of
from atoll.datacenter.metrics.meter import Meter
from atoll.datacenter.metrics.opening import open_sinks
from atoll.datacenter.metrics.tracing import Tracing
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.pipeline.passes import PipelinePasses
from atoll.datacenter.privacy import open_ledger, open_private
from atoll.datacenter.train.build import make_step
from atoll.datacenter.train.collector import Collector
from atoll.datacenter.train.evaluation import Evaluator
from atoll.datacenter.train.replica_group import OtherRows, ReplicaGroup, group_dims, group_job
from atoll.datacenter.train.upkeep import Upkeep, hook_states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atoll.datacenter.data import Batch
    from atoll.datacenter.elastic.replicas.member import Member
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import World
    from atoll.datacenter.metrics import Evaluation
    from atoll.datacenter.privacy import Mechanism
    from atoll.datacenter.privacy.step_ledger import StepLedger
    from atoll.datacenter.train.launched import Launched, StepResult
    from atoll.datacenter.train.pulse import Pulse
    from atoll.datacenter.train.step import Step

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """How a job ended; the same on every rank.

    Attributes:
        steps: steps since the job began, including earlier processes.
        total_steps: steps that the job asks for; fewer were run if it was stopped.
        tokens: tokens counted since the job began.
        loss: loss of the last step; None if no step was left.
        resumed_at: step of the checkpoint resumed from; None for a new job.
        held_out_loss: of this process's last evaluation; None without ``[evaluation]``.
    """

    steps: int
    total_steps: int
    tokens: int
    loss: float | None
    resumed_at: int | None
    held_out_loss: float | None = None

    @property
    def finished(self) -> bool:
        """Whether all steps have run; a checkpoint may have more than the job now asks for."""
        return self.steps >= self.total_steps


@dataclass
class Trainer:
    """One rank's part of a job. ``train`` runs it; use ``open_trainer`` to drive it step by step.

    Attributes:
        step: runs steps.
        loader: this rank's batches.
        state: the state that a checkpoint keeps.
        checkpoints: writes and reads checkpoints.
        mechanism: noise and budget of a job with ``[privacy]``.
        upkeep: work between steps.
        evaluator: computes the loss on held-out data, of a job with ``[evaluation]``.
        group: this rank's replica group, of a job with recovery in place.
        collector: collects Python's garbage between steps.
        evaluation: its last result.
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
    evaluator: Evaluator | None = None
    group: ReplicaGroup | None = None
    collector: Collector = field(default_factory=lambda: Collector(0))
    evaluation: Evaluation | None = None
    _launched: Launched | None = None
    _last: StepResult | None = None

    def run(self, ledger: StepLedger | None = None, resumed: Callable[[int], object] = lambda _step: None) -> Summary:
        """Run steps until the last one or until a stop is requested; then write a last checkpoint.

        Loss and norm of a step are read after the next one has been queued, so that the device never waits for this
        process. If something depends on them, they are read at once (see ``queue``).

        Args:
            ledger: counts the steps, on rank 0 of a job with ``[privacy]``.
            resumed: called with the step of the checkpoint that was read, before the next step.
        """
        resumed_at = self._begin()
        if resumed_at is not None:
            resumed(resumed_at)
        if ledger is not None:
            ledger.begin(self.state.step, resumed=resumed_at is not None)
        while self.state.step < self.job.job.steps:
            if ledger is not None:
                ledger.before(self.state.step)
            self._make_step()
            if self.pulse.stops_after(self.state.step):
                break
        self.settle()
        if ledger is not None:
            ledger.end(self.state.step)
        result = self._last
        if result is not None and self._leads:
            self.pulse.enter(self.state.step, "last checkpoint")
            self.checkpoints.save(self.state.step, self.state)
        loss = None if result is None else result.loss
        held_out = None if self.evaluation is None else self.evaluation.loss
        return Summary(self.state.step, self.job.job.steps, self.state.tokens, loss, resumed_at, held_out)

    def _begin(self) -> int | None:
        """Continue from the last checkpoint, or with a live replica group's state; return the checkpoint's step."""
        resumed_at = None
        if self.group is None or self.group.resumes:
            resumed_at = self.checkpoints.resume(self.state)
        if self.group is not None:
            self.group.enter(self.state)
            self.checkpoints.go_on_from(self.state.step)
        if resumed_at is None and self.state.step == 0:
            self._evaluate(0)
        return resumed_at

    def _make_step(self) -> None:
        """Run a step; a replica group that has missed too many steps gets a whole state instead."""
        try:
            self.queue()
        except BehindError as error:
            if self.group is None:
                raise
            log.warning("%s", error)
            self.step.optimiser.zero_grad(set_to_none=True)
            self.group.enter(self.state)
            self.checkpoints.go_on_from(self.state.step)

    @property
    def _leads(self) -> bool:
        """Whether this rank's replica group writes records and checkpoints."""
        return self.group is None or self.group.leads

    def advance(self) -> StepResult:
        """Run one step and wait for it; write a record and begin a checkpoint if they are due."""
        number = self.state.step
        self.settle()
        batches = self._next_batches(number)
        with self.tracing.step(number + 1):
            self._last = self.step(number, batches)
        self._count(self._last)
        self._finish(number + 1)
        return self._last

    def queue(self) -> list[StepResult]:
        """Queue one step, then read the figures of the previous step.

        A record, an evaluation, a checkpoint and a dynamic loss scale need the figures of this step; if one is due, the
        call waits for the step. So nothing is ever written of a step whose loss or gradient is not finite, nor of later
        ones. The caller calls ``settle`` before it sends, changes or saves weights itself.

        Returns:
            Results that were read in this call, in the order of their steps: of the previous step, of this one, or
            both.

        Raises:
            TrainingError: for a step whose figures were read, as ``Step`` raises it.
        """
        made = self.state.step + 1
        due = self._is_recorded(made) or self._is_evaluated(made) or self.checkpoints.is_due(made)
        if self.step.waits or due:
            return [*self.settle(), self.advance()]
        batches = self._next_batches(made - 1)
        with self.tracing.step(made):
            launched = self.step.launch(made - 1, batches)
        before = self.settle()
        self._launched = launched
        self._finish(made)
        return before

    def settle(self) -> list[StepResult]:
        """Read the figures of the step that was only queued, if there is one; returns and raises like ``queue``."""
        launched, self._launched = self._launched, None
        if launched is None:
            return []
        self._last = launched.result()
        self._count(self._last)
        return [self._last]

    def _count(self, result: StepResult) -> None:
        self.meter.step(result.tokens)
        self.state.tokens += result.tokens

    def _next_batches(self, number: int) -> list[Batch]:
        self.pulse.enter(number + 1, "data")
        with self.meter.waiting():
            batch = self.loader.next()
        self.pulse.enter(number + 1, "training")
        return self._micro_batches(batch)

    def _finish(self, made: int) -> None:
        """Do the work between steps."""
        self.upkeep.after_step(made)
        self.state.step = made
        if self.group is not None:
            self.group.after_step(self.state)
        self.pulse.enter(made, "checkpoint")
        if self._leads:
            self.checkpoints.after_step(made, self.state)
        else:
            self.checkpoints.follow(made)
        if self._is_evaluated(made):
            self._evaluate(made)
        if self._last is not None and self._is_recorded(made):
            self._record(self._last)
        self.collector.after_step(made)

    def _is_evaluated(self, made: int) -> bool:
        return self.evaluator is not None and self.evaluator.is_due(made)

    def _evaluate(self, made: int) -> None:
        if self.evaluator is not None:
            self.pulse.enter(made, "evaluation")
            with self.meter.pausing():
                self.evaluation = self.evaluator(made)
            self._led_sinks().evaluated(self.evaluation)

    def _is_recorded(self, made: int) -> bool:
        return made % self.job.metrics.every_steps == 0 or made == self.job.job.steps

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        return list(batch.to(self.world.device).micro_batches(self.job.batch.micro_batch))

    def _record(self, result: StepResult) -> None:
        interval = self.meter.lap()
        scale, traced, passes = self.step.scale, self.tracing.take(), self.step.passes
        attended = None if self.group is None else self.group.take_attendance()
        self._led_sinks().step(
            StepRecord(
                step=self.state.step,
                steps=interval.steps,
                loss=result.loss,
                lr=result.lr,
                grad_norm=result.gradient_norm,
                tokens=interval.tokens,
                total_tokens=self.state.tokens,
                seconds=interval.seconds,
                data_wait_s=interval.data_wait_s,
                peak_memory_bytes=interval.peak_memory_bytes,
                loss_scale=scale.scale if scale.dynamic else None,
                expert_load=result.expert_load,
                bubble_share=passes.idle_share() if isinstance(passes, PipelinePasses) else None,
                communication_share=traced.communication_share if traced else None,
                exposed_share=traced.exposed_share if traced else None,
                epsilon=None if self.mechanism is None else self.mechanism.budget.epsilon(self.state.step),
                replicas=None if attended is None else attended.last,
                replica_share=None if attended is None else attended.share,
                replicas_lost=None if attended is None else attended.lost,
                replicas_healed=None if attended is None else attended.healed,
                replicas_speculated=None if attended is None else attended.speculated,
            )
        )

    def _led_sinks(self) -> Sinks:
        """Return the sinks: those of rank 0, or of the replica group that leads."""
        if self.group is not None:
            self.group.lead_sinks(self.sinks)
        return self.sinks


def train(
    job: SiloJob, folder: Path, world: World, pulse: Pulse, *, console: bool = True, member: Member | None = None
) -> Summary:
    """Train a job on this rank. Collective; arguments and errors as in ``open_trainer``, and ``TrainingError``."""
    with open_trainer(job, folder, world, pulse, console=console, member=member) as trainer:
        return trainer.run(open_ledger(job, trainer.mechanism, world, folder))


@contextmanager
def open_trainer(
    job: SiloJob, folder: Path, world: World, pulse: Pulse, *, console: bool = True, member: Member | None = None
) -> Iterator[Trainer]:
    """Open one rank's part of a job, ready for its first step. Collective.

    Args:
        job: the parsed job file.
        folder: folder of the job file; its paths are relative to it.
        world: world of the ranks.
        pulse: takes reports of where this rank is.
        console: whether rank 0 prints progress on standard error.
        member: this rank in its replica group, with recovery in place; ``world`` is then the world of that group.

    Raises:
        LayoutError: if the job does not fit the number of ranks, or needs a ``member``.
        DataError: if its data cannot be read.
        CheckpointError: if checkpoints cannot be read or written.
    """
    whole = check_layout(job, world.size * (1 if member is None else member.groups))
    dims = group_dims(job, whole, member)
    meshes = Meshes.build(dims, world.device.type)
    seed_ranks(job.job.seed, meshes)
    spec = spec_of(job.model)
    facts = facts_of(job, spec, whole, world.device, folder)
    with ExitStack() as stack:
        pulse.enter(0, "data")
        ranks = meshes.data["batch"]
        agree = largest_over(ranks.get_group(), world.device)
        batches, mechanism = open_private(job, open_job_batches(job, folder), world.device)
        pin = world.device.type == "cuda"
        share = ranks.get_local_rank() + (0 if member is None else member.group * dims.batch)
        loader = stack.enter_context(Loader(batches, share, whole.batch, pin=pin, agree=agree))
        pulse.enter(0, "model")
        step = make_step(group_job(job, member), spec, meshes, world.device, mechanism, member)
        if job.faults.speculate_after is not None:
            step.rows_of = OtherRows(loader, dims.batch, ranks.get_local_rank(), job.batch.micro_batch, world.device)
        extras = {} if member is not None else {"random": RandomState(world.device), **hook_states(step)}
        state = TrainingState(step.passes.parts, step.optimiser, step.scale, loader, extras)
        opened = partial(open_sinks, job.metrics, facts, folder, rank=world.rank, console=console)
        yield Trainer(
            job=job,
            world=world,
            step=step,
            loader=loader,
            state=state,
            checkpoints=stack.enter_context(Checkpoints.open(job, folder, world, dims)),
            upkeep=Upkeep.of(job, step, meshes, loader, world.device),
            sinks=stack.enter_context(Sinks(()) if member is not None else opened()),
            meter=Meter(world.device),
            tracing=stack.enter_context(open_tracing(job, folder, world)),
            pulse=pulse,
            mechanism=mechanism,
            evaluator=Evaluator.of(job, folder, step.passes, meshes, world.device),
            group=None if member is None else ReplicaGroup(member, job.job.seed, meshes, opened),
            collector=stack.enter_context(Collector(job.processes.collect_every_steps).running()),
        )


def open_tracing(job: SiloJob, folder: Path, world: World) -> Tracing:
    """Return the traces of this rank that a job asks for; a context manager."""
    traces = folder / job.metrics.profile_folder
    return Tracing(traces, rank=world.rank, steps=job.metrics.profile_steps, cuda=world.device.type == "cuda")
