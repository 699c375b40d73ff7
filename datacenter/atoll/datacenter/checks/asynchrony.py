"""Check that an asynchronous job fits a number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from atoll.datacenter.checks.model import check_documents
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.models import spec_of

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob

_LEFT_OUT = ("mesh", "data_parallel", "tensor_parallel", "context_parallel", "pipeline")
"""Sections that describe how synchronous training is divided."""
_FORMATS = ("float32", "bfloat16")


def check_asynchrony(job: SiloJob, world_size: int) -> ParallelDims:
    """Return the job's degrees on this many ranks, all of them data parallel.

    Raises:
        LayoutError: listing every problem.
    """
    if problems := list(_problems(job, world_size)):
        raise LayoutError(*problems)
    return ParallelDims(dp_shard=world_size)


def _problems(job: SiloJob, world_size: int) -> Iterator[str]:
    server = job.asynchrony is not None and job.asynchrony.method == "parameter_server"
    workers = world_size - 1 if server else world_size
    if workers < 1:
        yield f'asynchrony.method = "parameter_server" on {world_size} rank: rank 0 is the server, start at least 2'
    elif job.batch.global_batch < workers:
        yield f"batch.global_batch = {job.batch.global_batch} is less than one sequence for each of {workers} workers"
    for name in _LEFT_OUT:
        if getattr(job, name) != type(getattr(job, name))():
            yield f"[{name}] has no effect with [asynchrony]: leave one of them out"
    yield from _left_out(job)


def _left_out(job: SiloJob) -> Iterator[str]:
    """Yield settings that only synchronous training supports."""
    if job.faults.recovery == "in-place":
        yield 'faults.recovery = "in-place" is not available with [asynchrony]: set "restart"'
    if job.evaluation is not None:
        yield "[evaluation] is not available with [asynchrony], whose ranks have no common model: leave one of them out"
    if job.precision != type(job.precision)(compute=job.precision.compute) or job.precision.compute not in _FORMATS:
        yield f"[precision] with [asynchrony] supports only compute, one of {', '.join(_FORMATS)}: leave the rest out"
    if job.memory.checkpointing == "gathered":
        yield 'memory.checkpointing = "gathered" with [asynchrony]: there is no tp; set "none" or another value'
    if job.optimiser.name == "muon":
        yield 'optimiser.name = "muon" is not available with [asynchrony]: set "adamw" or "sgd"'
    if job.privacy is not None:
        yield "[privacy] is not available with [asynchrony], whose gradients have no noise: leave one of them out"
    yield from check_documents(job, spec_of(job.model), ParallelDims())
    for name, found in (("moe", job.model.moe), ("lora", job.model.lora)):
        if found is not None:
            yield f"[model.{name}] is not available with [asynchrony]: leave one of them out"
