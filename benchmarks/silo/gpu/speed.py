"""Time steps of several programs in turn, so that a GPU's clock and heat fall on all alike."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from atoll.datacenter.data import Batch, open_batches
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import World, join_world
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import Trainer, open_trainer
from benchmarks.silo.gpu.sizes import Size

TIMEOUT_S = 600.0
_KEPT_BATCHES = 4


@contextmanager
def one_rank() -> Iterator[World]:
    """Join the world of the environment, else one of one rank: NCCL on a GPU, else gloo."""
    with join_world(TIMEOUT_S) as world:
        yield world


@contextmanager
def trained(job: SiloJob, world: World) -> Iterator[Trainer]:
    """Open the trainer of a job in a folder of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_trainer(job, Path(folder), world, Unwatched(), console=False) as trainer,
    ):
        yield trainer


def batches_of(job: SiloJob, device: torch.device) -> list[Batch]:
    """Return the first global batches of a job, on the device: a baseline waits for no data."""
    steps = open_batches(job.data, job.batch, job.job.seed, Path())
    return [steps.next_step().share(0, 1).to(device) for _ in range(_KEPT_BATCHES)]


def seconds_of(
    ways: Mapping[str, Callable[[], object]], size: Size, device: torch.device, *, repeats: int | None = None
) -> dict[str, float]:
    """Return the median time of a step by name, in seconds.

    Steps are timed several in a row, as in training, where the host queues a step while the device makes the one
    before. The device is idle before and after them.

    Args:
        ways: what makes a step.
        size: how many steps.
        device: that makes them.
        repeats: how often each is timed; ``size.repeats`` if None.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(-1, size.repeats if repeats is None else repeats):
        for name in sorted(ways, reverse=bool(repeat % 2)):
            _wait(device)
            began = time.perf_counter()
            for _ in range(size.steps):
                ways[name]()
            _wait(device)
            if repeat >= 0:  # the first compiles
                seconds[name].append((time.perf_counter() - began) / size.steps)
    return {name: median(found) for name, found in seconds.items()}


def alone(job: SiloJob, size: Size) -> float:
    """Return the seconds of a step of the trainer; its memory is free afterwards."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with one_rank() as world, trained(job, world) as trainer:
        found = seconds_of({"trainer": trainer.queue}, size, world.device)["trainer"]
        trainer.settle()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
