"""Asynchronous jobs on ranks of tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.data import Batches
from atoll.datacenter.data.packing import Rows
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, World
from atoll.datacenter.metrics import Sinks
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.apply import make_bare
from atoll.datacenter.train.asynchrony.clocks import Clocks
from atoll.datacenter.train.asynchrony.links import open_links
from atoll.datacenter.train.asynchrony.run import Progress, run_hogwild, run_server, run_worker
from atoll.datacenter.train.asynchrony.worker import alone
from atoll.datacenter.train.pulse import Pulse, Unwatched
from tests.datacenter.training import examples, named_whole, small
from tests.patience import WAIT_S

CPU = torch.device("cpu")
HERE = Path()


class Examples:
    """The rows of tests of layouts, as a source of batches."""

    digest = "examples"

    def __init__(self, job: SiloJob) -> None:
        self.global_batch, self._job = job.batch.global_batch, job

    def rows(self, step: int, start: int, stop: int) -> Rows:
        """See ``Source``."""
        found = examples(self._job, step, slice(start, stop))
        tokens, labels = (torch.cat([getattr(one, name) for one in found]) for name in ("tokens", "labels"))
        return Rows(np.asarray(tokens), np.asarray(labels))

    def epoch(self, step: int) -> int:
        """See ``Source``."""
        return step

    def bookmarks(self, step: int) -> None:
        """See ``Source``."""

    def recall(self, step: int, bookmarks: Any) -> None:
        """See ``Source``."""


def job_of(sections: dict[str, Any]) -> SiloJob:
    """Return the small job with these sections and no data-parallel settings."""
    found = small(**sections)
    del found["data_parallel"]
    return SiloJob.model_validate(found)


def served(
    sections: dict[str, Any], make_pulse: Callable[[], Pulse] = Unwatched, *, paired: bool = False
) -> dict[str, Any]:
    """Run a parameter server or one of its workers on this rank.

    Args:
        sections: sections of the job.
        make_pulse: makes what a worker reports its phases to.
        paired: whether vectors travel in groups of two ranks, as between GPUs.

    Returns:
        on the server: ``parameters``, ``loss`` of the last step, ``max_lead``, ``tokens``.
    """
    job = job_of(sections)
    world = World(dist.get_rank(), dist.get_world_size(), 0, CPU)
    meshes, links = Meshes.alone("cpu"), open_links(CPU, WAIT_S, paired=paired)
    if not world.is_first:
        run_worker(job, HERE, world, meshes, links[0], Batches(Examples(job)), make_pulse())
        return {}
    module = make_bare(alone(job), spec_of(job.model), meshes, CPU)
    progress = Progress(job, Sinks([]), Unwatched())
    clocks: Clocks = run_server(job, module, links, progress)
    parameters: dict[str, Tensor] = named_whole([module])
    found = {"parameters": parameters, "loss": progress.loss, "tokens": progress.tokens}
    return found | {"max_lead": clocks.max_lead}


def hogwild(sections: dict[str, Any]) -> dict[str, Any]:
    """Run a rank of Hogwild, and return its final view."""
    job = job_of(sections)
    world = World(dist.get_rank(), dist.get_world_size(), 0, CPU)
    step, summary = run_hogwild(job, HERE, world, Meshes.alone("cpu"), Batches(Examples(job)), Unwatched(), Sinks([]))
    return {"parameters": named_whole(step.passes.parts), "loss": summary.loss, "tokens": summary.tokens}
