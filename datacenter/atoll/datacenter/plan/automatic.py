"""Choose the layout of a job by itself: what ``--layout auto`` starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.datacenter.job.silo_job import SiloJob
from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.plan.layout import Layout, Method, Task, job_with
from atoll.datacenter.plan.search import search
from atoll.datacenter.plan.step_time import Machine

if TYPE_CHECKING:
    from atoll.datacenter.machine import MachineRates

PLANNED_KIND = "llama"
"""The kind of model whose parts the planner knows: Llama, Mistral, Qwen2, Qwen3, Gemma and Mixtral."""


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


def choose_layout(job: SiloJob, ranks: int, rates: MachineRates) -> Chosen:
    """Return the job with the layout of least predicted step time.

    Replaces ``[mesh]``, ``data_parallel.method``, ``batch.micro_batch``, ``memory.checkpointing`` and the pipeline's
    schedule. The planner does not know the parts of models of other kinds: their parameters are sharded over all ranks
    (ZeRO-3).

    Args:
        job: the job; its global batch stays.
        ranks: number of ranks that will train.
        rates: the machine to plan for.

    Raises:
        NothingFitsError: if no layout fits the machine, with the numbers.
        LayoutError: if no layout divides the model and the batch.
    """
    if job.model.kind == PLANNED_KIND:
        found = search(Task.of(job), ranks, Machine.of(rates))
        layout = found.best[0].layout
        reason = f"the fastest of {found.fitting:,} that fit {rates.name}, by prediction"
    else:
        layout = _sharded(job, ranks)
        reason = f'model.kind = "{job.model.kind}": the planner knows the parts of "{PLANNED_KIND}" models only'
    return Chosen(job_with(job, layout), layout, reason)


def _sharded(job: SiloJob, ranks: int) -> Layout:
    """Divide parameters over all ranks; micro-batches are the job's, or smaller where the global batch needs it."""
    method: Method = "zero3" if ranks > 1 else "ddp"
    each = max(1, job.batch.global_batch // ranks)
    micro_batch = next(size for size in range(min(job.batch.micro_batch, each), 0, -1) if each % size == 0)
    dims = ParallelDims(dp_shard=ranks)
    return Layout(dims, method, micro_batch, each // micro_batch, job.memory.checkpointing)
