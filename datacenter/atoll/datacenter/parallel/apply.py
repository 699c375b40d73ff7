"""Build the model of a job and cut it. The steps compose in this order only.

::

    pipeline stages → tensor parallel → expert and context parallel → activation checkpointing
        → compilation of each block → data parallel

All of this happens on the meta device; then memory is allocated for what this rank holds, and filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from atoll.datacenter.models.huggingface import start_from
from atoll.datacenter.parallel.activation import checkpoint_blocks
from atoll.datacenter.parallel.async_tp import check_async_tp, overlap_tensor_parallel
from atoll.datacenter.parallel.compile import compile_blocks
from atoll.datacenter.parallel.context import cut_sequences
from atoll.datacenter.parallel.data import shard, wrap_ddp
from atoll.datacenter.parallel.expert import cut_experts
from atoll.datacenter.parallel.float8 import check_float8, use_float8
from atoll.datacenter.parallel.initial import copy_whole, fill
from atoll.datacenter.parallel.loss import chunk_of, hand_on
from atoll.datacenter.parallel.pipeline.deal import Deal, deal_job
from atoll.datacenter.parallel.pipeline.kinds import KINDS
from atoll.datacenter.parallel.pipeline.split import build_stage, count_blocks
from atoll.datacenter.parallel.regather import regather_compiled, regather_inputs
from atoll.datacenter.parallel.tensor import between_blocks, cut_tensors, tie

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes, ParallelDims
    from atoll.datacenter.models.spec import ModelSpec


def make_model(job: SiloJob, spec: ModelSpec, meshes: Meshes, device: torch.device) -> nn.Module:
    """Build the job's model, cut for this rank, with its initial weights, or the weights that the job starts from.

    Args:
        job: validated against the mesh.
        spec: spec of the job's model.
        meshes: device meshes of the world.
        device: device of this rank.
    """
    module = make_bare(job, spec, meshes, device)
    if uses_ddp(job, meshes.dims) and meshes.dims.world_size > 1:
        return wrap_ddp(module, meshes, job)
    return module


def make_bare(job: SiloJob, spec: ModelSpec, meshes: Meshes, device: torch.device) -> nn.Module:
    """Same as ``make_model`` without DDP around whole replicas: gradients are not summed over ranks."""
    with torch.device("meta"):
        module = spec.build()
    _realise(module, job, spec, meshes, device)
    return module


def make_stages(
    job: SiloJob, spec: ModelSpec, meshes: Meshes, device: torch.device
) -> tuple[dict[int, nn.Module], Deal]:
    """Build this rank's pipeline stages by number, cut and filled as in ``make_model``; collective.

    Args:
        job: validated against the mesh.
        spec: spec of the job's model.
        meshes: device meshes of the world.
        device: device of this rank.

    Returns:
        The stages, and the assignment of all blocks to stages.
    """
    deal = deal_job(job, spec, count_blocks(spec), meshes.dims.pp, device)
    stages = {number: build_stage(spec, deal, number) for number in deal.of_rank(meshes.dense["pp"].get_local_rank())}
    for module in stages.values():
        _realise(module, job, spec, meshes, device)
    return stages, deal


def _realise(module: nn.Module, job: SiloJob, spec: ModelSpec, meshes: Meshes, device: torch.device) -> None:
    """Cut a model or a stage, allocate memory for what this rank holds, and fill it, in place."""
    if job.tensor_parallel.asynchronous:
        check_async_tp(device)
    if job.precision.compute == "float8":
        check_float8(device)
        use_float8(module, spec, job.precision)
    cut(module, job, spec, meshes)
    module.to_empty(device="cpu" if job.data_parallel.cpu_offload else device)
    tie(module, spec)
    given = start_from(module, spec, job.model)
    if spec.weights is not None:
        given |= copy_whole(module, spec.weights())
    fill(module, spec.initial, job.job.seed, but=given)


def cut(module: nn.Module, job: SiloJob, spec: ModelSpec, meshes: Meshes) -> None:
    """Cut a model, or one stage of it, on the meta device, in place."""
    chunked = spec.head if chunk_of(job, spec, meshes) is not None else None
    tp = meshes.dense["tp"] if meshes.dims.tp > 1 else None
    if tp is not None:
        cut_tensors(module, spec, tp, job.tensor_parallel, but=() if chunked is None else (chunked,))
    if chunked is not None and (head := getattr(module, chunked)) is not None:  # None: an earlier stage
        hand_on(head, tp, between_blocks(job.tensor_parallel))
        tie(module, spec)
    cut_experts(module, meshes, between_blocks(job.tensor_parallel))
    cut_sequences(module, spec, job, meshes)
    if job.memory.checkpointing == "gathered" and tp is not None:
        if job.memory.compile:
            regather_compiled()
        else:
            entries = (block.get_submodule(name) for block in spec.blocks_of(module).values() for name in spec.entries)
            regather_inputs(entries, tp, between_blocks(job.tensor_parallel))
    if job.tensor_parallel.asynchronous and tp is not None:
        overlap_tensor_parallel(tp)
    spec.freeze(module)  # after tensor parallelism, which replaces parameters; before FSDP2, which groups by it
    checkpoint_blocks(spec.blocks_of(module).values(), job.memory)
    if job.memory.compile:
        splits = meshes.dims.pp > 1 and KINDS[job.pipeline.schedule].splits_backward
        compile_blocks(module, spec, backward_twice=splits)
    if not uses_ddp(job, meshes.dims):
        shard(module, spec, meshes, job)


def uses_ddp(job: SiloJob, dims: ParallelDims) -> bool:
    """Return whether PyTorch's DDP wraps the model. DDP does not combine with other axes; there FSDP2 replicates."""
    return job.data_parallel.method == "ddp" and dims.batch == dims.world_size
