"""Check that a job fits its pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.parallel.pipeline.deal import micro_batches, stages_per_rank
from atoll.datacenter.parallel.pipeline.kinds import KINDS
from atoll.datacenter.parallel.pipeline.split import count_blocks
from atoll.datacenter.torch_version import TORCH

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import ParallelDims
    from atoll.datacenter.models.spec import ModelSpec

COMPILES_SPLIT_BACKWARD = TORCH >= (2, 13)
"""Whether gradients of compiled blocks can be taken in two passes; torch 2.11 fails."""
_LOOPING = ", ".join(name for name, kind in KINDS.items() if kind.loops)


def check_pipeline(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Yield the reasons why the pipeline cannot run, one sentence each, with the numbers and the remedy.

    Raises:
        LayoutError: if there is no such model.
    """
    if dims.pp > 1:
        spec = spec_of(job.model)
        yield from _stages(job, spec, dims)
        yield from _batches(job, dims)
        yield from _company(job, spec)


def _stages(job: SiloJob, spec: ModelSpec, dims: ParallelDims) -> Iterator[str]:
    section, kind = job.pipeline, KINDS[job.pipeline.schedule]
    asked = section.stages_per_rank
    if kind.v_shaped and asked != 2 and "stages_per_rank" in section.model_fields_set:
        yield f'pipeline.stages_per_rank = {asked}: schedule "{section.schedule}" has 2 on each rank; leave it out'
    elif not kind.loops and not kind.v_shaped and asked > 1:
        yield (
            f'pipeline.stages_per_rank = {asked}: schedule "{section.schedule}" has 1 on each rank; '
            f"schedules that loop are {_LOOPING}"
        )
    blocks = job.model.layers if job.model.kind == "llama" else count_blocks(spec)
    stages = dims.pp * stages_per_rank(section)
    if blocks < stages:
        yield (
            f"the model's {blocks} blocks cannot fill {stages} pipeline stages (pp {dims.pp} * "
            f"{stages // dims.pp} on each rank): each needs at least one; lower mesh.pp or use more layers"
        )


def _batches(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    schedule, kind = job.pipeline.schedule, KINDS[job.pipeline.schedule]
    found = micro_batches(job, dims.batch)
    counted = (
        f"{found} micro-batches (batch.global_batch {job.batch.global_batch} / ({dims.batch} data-parallel ranks * "
        f"batch.micro_batch {job.batch.micro_batch}))"
    )
    stages = dims.pp * stages_per_rank(job.pipeline)
    needed = stages if kind.as_many_micro_batches_as_stages else 1
    if found < needed:
        yield f'schedule "{schedule}" of {stages} stages needs at least {needed} micro-batches, there are {counted}'
        return
    rounds = max(1, found // dims.pp)
    if kind.whole_rounds and found % rounds:
        yield (
            f'schedule "{schedule}" sends micro-batches round pp {dims.pp} ranks in {rounds} rounds, '
            f"which do not divide {counted}: take a multiple of {dims.pp}"
        )


def _company(job: SiloJob, spec: ModelSpec) -> Iterator[str]:
    """Yield settings of other sections that cannot be combined with stages."""
    section, kind = job.pipeline, KINDS[job.pipeline.schedule]
    for first, second in spec.tied:
        yield (
            f"{first} and {second} are one parameter, but pipeline stages would separate them: "
            "set model.tied_embeddings = false, or mesh.pp = 1"
        )
    if job.data_parallel.uneven:
        yield "data_parallel.uneven = true: replicas of a pipeline run the same number of micro-batches; leave it out"
    if kind.splits_backward and job.data_parallel.method == "zero3":
        yield (
            f'data_parallel.method = "zero3" frees parameters before the backward pass, and schedule '
            f'"{section.schedule}" would miss the gradients of parameters that it does not see: use "zero2"'
        )
    if kind.splits_backward and job.memory.checkpointing == "selective" and not job.memory.compile:
        yield (
            f'memory.checkpointing = "selective" allows one backward pass, but schedule "{section.schedule}" makes '
            'two, of inputs and of weights: use "full", or memory.compile = true'
        )
    if kind.splits_backward and job.memory.compile and not COMPILES_SPLIT_BACKWARD:
        yield (
            f'memory.compile = true with schedule "{section.schedule}" needs torch 2.13 (here: {torch.__version__}): '
            "install it, or set memory.compile = false"
        )
