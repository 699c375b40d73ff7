"""Asynchronous jobs on ranks of tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from atoll.datacenter.job import SiloJob
from atoll.datacenter.metrics.sink import Sinks
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.passes import MicroBatch
from atoll.datacenter.train.asynchrony.clocks import Clocks
from atoll.datacenter.train.asynchrony.passes import whole_model
from atoll.datacenter.train.asynchrony.run import Progress, run_hogwild, run_server, run_worker
from atoll.datacenter.train.pulse import Unwatched
from tests.datacenter.training import examples, named_whole, small

CPU = torch.device("cpu")
Feed = Callable[[int], Sequence[MicroBatch]]


def job_of(sections: dict[str, Any]) -> SiloJob:
    """Return the small job with these sections and no data-parallel settings."""
    found = small(**sections)
    del found["data_parallel"]
    return SiloJob.model_validate(found)


def feed_of(job: SiloJob, worker: int, workers: int) -> Feed:
    """Rows as in the tests of layouts, divided as evenly as possible."""
    rows = job.batch.global_batch
    mine = slice(worker * rows // workers, (worker + 1) * rows // workers)
    return lambda clock: examples(job, clock, mine)


def served(sections: dict[str, Any], around: Callable[[Feed], Feed] = lambda feed: feed) -> dict[str, Any]:
    """Run a parameter server or one of its workers on this rank.

    Args:
        sections: sections of the job.
        around: changes how a worker gets its data.

    Returns:
        on the server: ``parameters``, ``loss`` of the last step, ``max_lead``, ``tokens``.
    """
    job = job_of(sections)
    module = whole_model(job, spec_of(job.model), CPU)
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    if rank == 0:
        progress = Progress(job, Sinks([]), Unwatched())
        clocks: Clocks = run_server(job, module, progress)
        return {**result(module, progress), "max_lead": clocks.max_lead}
    run_worker(job, spec_of(job.model), module, around(feed_of(job, rank - 1, workers)), CPU, Unwatched())
    return {}


def hogwild(sections: dict[str, Any]) -> dict[str, Any]:
    """Run a rank of Hogwild, and return its final view."""
    job = job_of(sections)
    module = whole_model(job, spec_of(job.model), CPU)
    progress = Progress(job, Sinks([]), Unwatched())
    run_hogwild(job, spec_of(job.model), module, feed_of(job, dist.get_rank(), dist.get_world_size()), progress)
    return result(module, progress)


def result(module: torch.nn.Module, progress: Progress) -> dict[str, Any]:
    """Return the parameters and the last loss."""
    parameters: dict[str, Tensor] = named_whole([module])
    return {"parameters": parameters, "loss": progress.loss, "tokens": progress.tokens}
