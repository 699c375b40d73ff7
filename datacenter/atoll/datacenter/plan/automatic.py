"""Choose the layout of a job by itself: for ``fit`` and for ``--layout auto``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.silo_job import SiloJob
from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.plan.layout import MASTER_BYTES, Layout, Method, Task, job_with, state_elements
from atoll.datacenter.plan.search import search

if TYPE_CHECKING:
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.plan.step_time import Machine

PLANNED_KIND = "llama"
"""The kind of model whose parts the planner knows: Llama, Mistral, Qwen2, Qwen3, Gemma and Mixtral."""
REPLICA_SHARE = 0.5
"""A whole replica may take this share of a device's memory; the rest is for activations."""


@dataclass(frozen=True)
class Chosen:
    """A job with the layout that was chosen for it.

    Attributes:
        job: the job, with every degree written out.
        layout: the layout.
        reason: why this one, for the terminal.
    """

    job: SiloJob
    layout: Layout
    reason: str


def choose_layout(job: SiloJob, spec: ModelSpec, ranks: int, machine: Machine, *, called: str | None = None) -> Chosen:
    """Return the job with the layout of least predicted step time.

    Replaces ``[mesh]``, ``data_parallel.method``, ``batch.micro_batch``, ``memory.checkpointing`` and the pipeline's
    schedule. The planner does not know the parts of models of other kinds: every rank holds a whole replica (DDP) if
    that leaves room for activations, else parameters are sharded over all ranks (ZeRO-3).

    Args:
        job: the job; its global batch stays.
        spec: spec of its model.
        ranks: number of ranks that will train.
        machine: the machine to plan for.
        called: what the reason calls a model that is not planned; default: its kind.

    Raises:
        NothingFitsError: if no layout fits the machine, with the numbers.
        LayoutError: if no layout divides the model and the batch, or the job is asynchronous and has none.
    """
    if job.asynchrony is not None:
        raise LayoutError(
            f'[asynchrony] with layout "auto": {job.asynchrony.method} has no layout; leave one of them out'
        )
    if job.model.kind == PLANNED_KIND:
        found = search(Task.of(job), ranks, machine)
        layout = found.best[0].layout
        reason = f"the fastest of {found.fitting:,} that fit {machine.describe()}, by prediction"
        if job.privacy is not None:
            reason += " without what [privacy] adds"
        return Chosen(job_with(job, layout), layout, reason)
    size, room = replica_bytes(job, spec), REPLICA_SHARE * machine.rates.memory_bytes
    needs_shards = job.data_parallel.cpu_offload or job.precision.float8_gather
    needs_replicas = job.privacy is not None and job.privacy.mode == "hooks"
    replicas = needs_replicas or (not needs_shards and (ranks == 1 or size <= room))
    layout = _data_parallel(job, ranks, replicas=replicas)
    if needs_replicas:
        return Chosen(job_with(job, layout), layout, 'privacy.mode = "hooks" needs whole replicas')
    if needs_shards:
        return Chosen(job_with(job, layout), layout, "cpu_offload and float8_gather need shards")
    device = "half of a device" if machine.device else f"half of a device ({machine.rates.name})"
    called = called or f'"{job.model.kind}"'
    fits = "fit" if size <= room else "do not fit"
    reason = (
        f"{size / 2**30:.2f} GiB of parameters, gradients and states {fits} {room / 2**30:.1f} GiB, {device}; "
        f'the planner knows the parts of "{PLANNED_KIND}" models only, not of {called}'
    )
    return Chosen(job_with(job, layout), layout, reason)


def replica_bytes(job: SiloJob, spec: ModelSpec) -> int:
    """Return the bytes of a whole model with its gradients and optimiser states."""
    with torch.device("meta"):
        module = spec.build()
    spec.freeze(module)
    elements = sum(parameter.numel() for parameter in module.parameters())
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return MASTER_BYTES * (elements + (1 + state_elements(job)) * trained)


def _data_parallel(job: SiloJob, ranks: int, *, replicas: bool) -> Layout:
    """Replicate or shard; micro-batches are the job's, or smaller where the global batch needs it."""
    method: Method = "ddp" if replicas else "zero3"
    each = max(1, job.batch.global_batch // ranks)
    micro_batch = next(size for size in range(min(job.batch.micro_batch, each), 0, -1) if each % size == 0)
    groups = ranks if replicas else 1
    if job.faults.recovery == "in-place" and ranks % 2 == 0:
        groups = max(groups, 2)  # one to recover from
    dims = ParallelDims(dp_replicate=groups, dp_shard=ranks // groups)
    return Layout(dims, method, micro_batch, each // micro_batch, job.memory.checkpointing)
