"""Run an asynchronous job on this rank: ``[asynchrony]`` instead of gradients that are summed at every step.

Each worker runs the loop of synchronous training (``Trainer``) on its own; the server has threads that wait for
workers.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import nn

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.data import open_job_batches
from atoll.datacenter.job.asynchrony import AsynchronySection
from atoll.datacenter.mesh import Meshes
from atoll.datacenter.metrics import Sinks, StepRecord
from atoll.datacenter.metrics.facts import facts_of
from atoll.datacenter.metrics.meter import peak_memory_bytes
from atoll.datacenter.metrics.opening import open_sinks
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.apply import make_bare
from atoll.datacenter.train.asynchrony.channel import Push, WorkersEnd
from atoll.datacenter.train.asynchrony.clocks import Clocks
from atoll.datacenter.train.asynchrony.hogwild import shared_parameters
from atoll.datacenter.train.asynchrony.links import Link, open_links
from atoll.datacenter.train.asynchrony.server import Server
from atoll.datacenter.train.asynchrony.updates import Updates
from atoll.datacenter.train.asynchrony.vector import size_of
from atoll.datacenter.train.asynchrony.worker import (
    ToServer,
    ToSharedMemory,
    WorkerStep,
    alone,
    make_worker_step,
    open_worker,
)
from atoll.datacenter.train.optimiser import clip, gradient_norm, lr_at, make_optimiser
from atoll.datacenter.train.trainer import Summary

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.data import Batches
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import World
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
    dims = check_layout(job, world.size)
    facts = facts_of(job, spec_of(job.model), dims, world.device, folder)
    batches = open_job_batches(job, folder)
    with open_sinks(job.metrics, facts, folder, rank=world.rank, console=console) as sinks:
        return run_rank(job, folder, world, batches, pulse, sinks)


def run_rank(job: SiloJob, folder: Path, world: World, batches: Batches, pulse: Pulse, sinks: Sinks) -> Summary:
    """Run this rank's part of a job; collective."""
    section = job.asynchrony or AsynchronySection()
    meshes = Meshes.alone(world.device.type)
    if section.method == "hogwild":
        step, summary = run_hogwild(job, folder, world, meshes, batches, pulse, sinks)
        if world.is_first:
            save_weights(job, step.passes.parts[0], folder)
        return summary
    links = open_links(world.device, job.faults.collective_timeout_s)
    if not world.is_first:
        return run_worker(job, folder, world, meshes, links[0], batches, pulse)
    module = make_bare(alone(job), spec_of(job.model), meshes, world.device)
    progress = Progress(job, sinks, pulse, world.device)
    run_server(job, module, links, progress)
    save_weights(job, module, folder)
    return Summary(progress.step, job.job.steps, progress.tokens, progress.loss, None)


def run_server(job: SiloJob, module: nn.Module, links: Sequence[Link], progress: Progress) -> Clocks:
    """Run the parameter server, with its parameters where the module's are.

    Returns:
        The clocks at the end, with the largest lead.
    """
    section = job.asynchrony or AsynchronySection()
    parameters = list(module.parameters())
    workers = len(links)
    progress.workers = workers
    optimiser = make_optimiser(parameters, job.optimiser)
    if section.apply == "arrival":
        share_decay(optimiser, workers)
    updates = Updates(parameters, optimiser, workers, section.apply, _before_step(job, parameters, optimiser))
    clocks = Clocks(workers, section.staleness)
    Server(parameters, updates, clocks, links, job.faults.collective_timeout_s, progress.heard).serve()
    return clocks


def run_worker(
    job: SiloJob, folder: Path, world: World, meshes: Meshes, link: Link, batches: Batches, pulse: Pulse
) -> Summary:
    """Run a worker of the parameter server."""
    channels: list[WorkersEnd] = []

    def exchange(parameters: list[nn.Parameter]) -> ToServer:
        channels.append(WorkersEnd(link, size_of(parameters)))
        return ToServer(channels[0])

    step = make_worker_step(job, meshes, world.device, exchange)
    share = (batches, world.rank - 1, world.size - 1)
    with open_worker(job, folder, world, step, share, pulse, Sinks(())) as trainer:
        summary = trainer.run()
    channels[0].done()
    return summary


def run_hogwild(
    job: SiloJob, folder: Path, world: World, meshes: Meshes, batches: Batches, pulse: Pulse, sinks: Sinks
) -> tuple[WorkerStep, Summary]:
    """Run one rank with Hogwild. Each rank has its own optimiser states.

    Returns:
        The rank's ``WorkerStep``, and how the job ended.
    """
    step = make_worker_step(job, meshes, world.device, lambda _: ToSharedMemory(world.size))
    share_decay(step.optimiser, world.size)
    share = (batches, world.rank, world.size)
    with shared_parameters(step.parameters), open_worker(job, folder, world, step, share, pulse, sinks) as trainer:
        return step, trainer.run()


def share_decay(optimiser: torch.optim.Optimizer, workers: int) -> None:
    """Divide weight decay, so that a step of every worker decays weights as much as one step of one optimiser."""
    for group in optimiser.param_groups:
        group["weight_decay"] /= workers


def save_weights(job: SiloJob, module: nn.Module, folder: Path) -> None:
    """Write the weights as safetensors, if the job has a folder for them; a tied parameter is written once."""
    if job.checkpoint.folder is None:
        return
    kept = folder / job.checkpoint.folder
    kept.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().contiguous().clone() for name, value in module.named_parameters()}
    save_file(tensors, kept / WEIGHTS)


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
    """Reports each clock that all workers of a parameter server have passed.

    Attributes:
        device: device of the server.
        workers: number of workers whose updates make a clock.
        tokens: number of tokens counted so far.
        step: number of clocks that all workers have passed.
        loss: mean over the tokens of the last such clock.
    """

    job: SiloJob
    sinks: Sinks
    pulse: Pulse
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
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
                peak_memory_bytes=peak_memory_bytes(self.device),
            )
        )
        self._recorded_s, self._recorded_tokens, self._recorded_step = now, self.tokens, step
