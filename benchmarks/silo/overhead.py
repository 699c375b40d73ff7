"""The trainer's overhead over a bare PyTorch loop of the same model and layout, with alternating steps."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from atoll.datacenter.data import Batch, open_batches
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import World, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import open_trainer
from benchmarks.figures import Figure
from tests.datacenter.ranks import run_ranks

COMMAND = "python -m benchmarks.silo overhead"
TARGET = 1.03
_STEPS, _WARM_UP = 40, 3
_TIMEOUT_S = 900.0
JOB: dict[str, Any] = {
    "job": {"name": "overhead", "steps": 1000},
    "model": {"layers": 4, "dim": 256, "heads": 4},
    "batch": {"sequence": 256, "global_batch": 4, "micro_batch": 2},
    "data_parallel": {"method": "ddp"},
}
_SMALL: dict[str, Any] = JOB | {
    "model": {"layers": 1, "dim": 32, "heads": 4},
    "batch": {"sequence": 16, "global_batch": 4, "micro_batch": 2},
}


def run(smoke: bool) -> list[Figure]:
    """Seconds of a step in the trainer and in the bare loop; medians over alternating steps.

    A smoke run makes few steps of a small model in this process, which is a world of one rank.
    """
    figures = []
    for ranks in (1,) if smoke else (1, 2):
        (found, *_) = [_measure(3, smoke)] if smoke else run_ranks(_measure, ranks, _STEPS, smoke, timeout_s=_TIMEOUT_S)
        model = "a small model" if smoke else "3.2 million parameters"
        name = f"a step of {model}, {ranks} rank{'s, ddp' if ranks > 1 else ''}: trainer"
        figures.append(
            Figure.within(name, found["trainer"] * 1000, "ms", COMMAND, limit=found["bare"] * 1000, target=TARGET)
        )
    return figures


def _measure(steps: int, smoke: bool) -> dict[str, float]:  # the arguments of run_ranks
    job = SiloJob.model_validate(_SMALL if smoke else JOB)
    seconds: dict[str, list[float]] = {"bare": [], "trainer": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        join_world(_TIMEOUT_S) as world,
        open_trainer(job, Path(folder), world, Unwatched(), console=False) as trainer,
    ):
        ways = {"bare": _bare(job, world), "trainer": trainer.advance}
        for number in range(steps + _WARM_UP):
            for name in sorted(ways, reverse=bool(number % 2)):
                began = time.perf_counter()
                ways[name]()
                if number >= _WARM_UP:
                    seconds[name].append(time.perf_counter() - began)
    return {name: median(found) for name, found in seconds.items()}


def _bare(job: SiloJob, world: World) -> Callable[[], object]:
    """A step of a hand-written loop."""
    model = spec_of(job.model).build()
    wrapped = DistributedDataParallel(model) if world.size > 1 else model
    optimiser = torch.optim.AdamW(model.parameters(), lr=job.optimiser.lr, betas=job.optimiser.betas)
    batches = _batches(job, world)

    def step() -> None:
        micro_batches = list(next(batches).micro_batches(job.batch.micro_batch))
        for number, batch in enumerate(micro_batches, 1):
            if isinstance(wrapped, DistributedDataParallel):
                wrapped.require_backward_grad_sync = number == len(micro_batches)
            logits = wrapped(batch.tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()) / len(micro_batches)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()

    return step


def _batches(job: SiloJob, world: World) -> Iterator[Batch]:
    """Data in memory, so that the bare loop waits for no data."""
    steps = open_batches(job.data, job.batch, job.job.seed, Path())
    kept = [steps.next_step().share(world.rank, world.size) for _ in range(8)]
    while True:
        yield from kept
