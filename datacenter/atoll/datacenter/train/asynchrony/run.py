"""Run an asynchronous job on this rank: ``[asynchrony]`` instead of the synchronous trainer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.data import open_job_batches
from atoll.datacenter.job.asynchrony import AsynchronySection
from atoll.datacenter.metrics import StepRecord
from atoll.datacenter.metrics.facts import facts_of
from atoll.datacenter.metrics.meter import peak_memory_bytes
from atoll.datacenter.metrics.opening import open_sinks
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.asynchrony.channel import SERVER, Push, WorkersEnd
from atoll.datacenter.train.asynchrony.clocks import Clocks
from atoll.datacenter.train.asynchrony.hogwild import shared_parameters
from atoll.datacenter.train.asynchrony.passes import run_passes, whole_model
from atoll.datacenter.train.asynchrony.server import Server
from atoll.datacenter.train.asynchrony.updates import Updates
from atoll.datacenter.train.asynchrony.vector import size_of, write, write_gradients
from atoll.datacenter.train.optimiser import clip, gradient_norm, lr_at, make_optimiser
from atoll.datacenter.train.trainer import Summary

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.data import Batches
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import World
    from atoll.datacenter.metrics import Sinks
    from atoll.datacenter.models import ModelSpec
    from atoll.datacenter.parallel.passes import MicroBatch
    from atoll.datacenter.train.pulse import Pulse

WEIGHTS = "weights.safetensors"
"""File that an asynchronous job writes into the folder of its checkpoints at the end."""


def train_asynchronously(job: SiloJob, folder: Path, world: World, pulse: Pulse, *, console: bool = True) -> Summary:
    """Train a job with ``[asynchrony]`` on this rank. Collective.

    Args:
        job: the parsed job file; ``job.steps`` are the clocks of each worker.
        folder: folder of the job file.
        world: world of the ranks.
        pulse: takes reports of where this rank is.
        console: whether rank 0 prints progress.

    Raises:
        LayoutError: if the job does not fit the number of ranks.
        DataError: if its data cannot be read.
        TrainingError: if a worker is lost or hangs.
    """
    section = job.asynchrony or AsynchronySection()
    dims = check_layout(job, world.size)
    spec = spec_of(job.model)
    module = whole_model(job, spec, world.device)
    batches = open_job_batches(job, folder)
    facts = facts_of(job, spec, dims, world.device, folder)
    with open_sinks(job.metrics, facts, folder, rank=world.rank, console=console) as sinks:
        progress = Progress(job, sinks, pulse)
        if section.method == "hogwild":
            made = run_hogwild(job, spec, module, feed_of(job, batches, world.rank, world.size), progress)
        elif world.rank == SERVER:
            run_server(job, module, progress)
            made = progress.step
        else:
            feed = feed_of(job, batches, world.rank - 1, world.size - 1)
            made = run_worker(job, spec, module, feed, world.device, pulse)
    if world.rank == 0 and job.checkpoint.folder is not None:
        save_weights(module, folder / job.checkpoint.folder)
    return Summary(made, job.job.steps, progress.tokens, progress.loss, None)


def feed_of(job: SiloJob, batches: Batches, worker: int, workers: int) -> Callable[[int], Sequence[MicroBatch]]:
    """Return a function that gives a worker's share of any step, as micro-batches."""
    return lambda clock: list(batches.step(clock).share(worker, workers).micro_batches(job.batch.micro_batch))


@contextmanager
def gloo_group(job: SiloJob) -> Iterator[dist.ProcessGroup]:
    """Make a gloo group of all ranks, which can send and receive on CPUs with any world backend; collective."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=job.faults.collective_timeout_s))
    if not isinstance(group, dist.ProcessGroup):  # new_group returns something else to ranks outside the group
        raise TypeError("this rank is not in the group of all ranks")
    yield group


def run_server(job: SiloJob, module: nn.Module, progress: Progress) -> Clocks:
    """Run the parameter server on rank 0.

    Returns:
        The clocks at the end, with the largest lead.
    """
    section = job.asynchrony or AsynchronySection()
    module.to("cpu")
    parameters = list(module.parameters())
    workers = dist.get_world_size() - 1
    progress.workers = workers
    optimiser = make_optimiser(parameters, job.optimiser)
    if section.apply == "arrival":
        share_decay(optimiser, workers)
    updates = Updates(parameters, optimiser, workers, section.apply, _before_step(job, parameters, optimiser))
    clocks = Clocks(workers, section.staleness)
    with gloo_group(job) as group:
        Server(parameters, updates, clocks, group, job.faults.collective_timeout_s, progress.heard).serve()
    return clocks


def run_worker(
    job: SiloJob,
    spec: ModelSpec,
    module: nn.Module,
    feed: Callable[[int], Sequence[MicroBatch]],
    device: torch.device,
    pulse: Pulse,
) -> int:
    """Run a worker of the parameter server.

    Returns:
        Number of steps made: all, unless the job was stopped.
    """
    parameters = list(module.parameters())
    made = 0
    with gloo_group(job) as group:
        channel = WorkersEnd(group, size_of(parameters))
        while made < job.job.steps and not (made and pulse.stops_after(made)):
            pulse.enter(made + 1, "training")
            write(channel.pull(), parameters)
            channel.push(run_passes(module, spec, feed(made), device))
            made += 1
        channel.done()
    return made


def run_hogwild(
    job: SiloJob,
    spec: ModelSpec,
    module: nn.Module,
    feed: Callable[[int], Sequence[MicroBatch]],
    progress: Progress,
) -> int:
    """Run one rank with Hogwild. Each rank has its own optimiser states.

    Returns:
        Number of steps made: all, unless the job was stopped.
    """
    parameters = list(module.parameters())
    workers = dist.get_world_size()
    with shared_parameters(parameters):
        optimiser = make_optimiser(parameters, job.optimiser)
        share_decay(optimiser, workers)
        before_step = _before_step(job, parameters, optimiser)
        made = 0
        while made < job.job.steps and not (made and progress.pulse.stops_after(made)):
            update = run_passes(module, spec, feed(made), torch.device("cpu"))
            write_gradients(update.gradient.div_(max(1, update.tokens) * workers), parameters)
            before_step(made)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            progress.heard(0, made, update)
            made += 1
    return made


def share_decay(optimiser: torch.optim.Optimizer, workers: int) -> None:
    """Divide weight decay, so that a step of every worker decays weights as much as one step of one optimiser."""
    for group in optimiser.param_groups:
        group["weight_decay"] /= workers


def save_weights(module: nn.Module, folder: Path) -> None:
    """Write the weights as safetensors; a tied parameter is written once."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous().clone() for name, value in module.named_parameters()}
    save_file(tensors, folder / WEIGHTS)


def _before_step(
    job: SiloJob, parameters: list[nn.Parameter], optimiser: torch.optim.Optimizer
) -> Callable[[int], None]:
    """Return a function that sets the learning rate of a clock and clips gradients."""

    def before_step(clock: int) -> None:
        if job.optimiser.max_grad_norm is not None:
            clip(parameters, gradient_norm(parameters, None), job.optimiser.max_grad_norm)
        for group in optimiser.param_groups:
            group["lr"] = lr_at(clock, job.job.steps, job.optimiser.lr, job.schedule)

    return before_step


@dataclass
class Progress:
    """Reports each clock that all workers have passed; with Hogwild, each of rank 0's own.

    Attributes:
        workers: number of workers whose updates make a clock.
        tokens: number of tokens counted so far.
        step: number of clocks that all workers have passed.
        loss: mean over the tokens of the last such clock.
    """

    job: SiloJob
    sinks: Sinks
    pulse: Pulse
    workers: int = 1
    tokens: int = 0
    step: int = 0
    loss: float | None = None
    _open: dict[int, list[Push]] = field(default_factory=lambda: defaultdict(list))
    _recorded_s: float = field(default_factory=time.perf_counter)
    _recorded_tokens: int = 0
    _recorded_step: int = 0

    def heard(self, worker: int, clock: int, update: Push) -> None:
        """Count an update."""
        del worker
        self.tokens += update.tokens
        self._open[clock].append(Push(torch.empty(0), update.tokens, update.loss))
        if len(self._open[clock]) < self.workers:
            return
        together = self._open.pop(clock)
        self.loss = sum(one.loss for one in together) / max(1, sum(one.tokens for one in together))
        self.step = clock + 1
        self.pulse.enter(clock + 1, "training")
        if (clock + 1) % self.job.metrics.every_steps == 0 or clock + 1 == self.job.job.steps:
            self._record(clock)

    def _record(self, clock: int) -> None:
        now, step = time.perf_counter(), clock + 1
        self.sinks.step(
            StepRecord(
                step=step,
                steps=step - self._recorded_step,
                loss=self.loss or 0.0,
                lr=lr_at(clock, self.job.job.steps, self.job.optimiser.lr, self.job.schedule),
                grad_norm=None,
                tokens=self.tokens - self._recorded_tokens,
                total_tokens=self.tokens,
                seconds=now - self._recorded_s,
                data_wait_s=0.0,
                peak_memory_bytes=peak_memory_bytes(torch.device("cpu")),
            )
        )
        self._recorded_s, self._recorded_tokens, self._recorded_step = now, self.tokens, step
