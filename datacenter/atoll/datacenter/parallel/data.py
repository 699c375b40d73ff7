"""Data parallelism: whole replicas (DDP), or parameters, gradients and optimiser states sharded over replicas (ZeRO).

The three stages of ZeRO (Rajbhandari et al. 2020, section 5) are FSDP2 with three settings:

======  ============================  ==================================  =======================
stage   between forward and backward  between micro-batches: gradients    states, between steps
======  ============================  ==================================  =======================
zero1   parameters stay whole         summed whole, scattered at the end  sharded
zero2   parameters stay whole         scattered after each                sharded
zero3   parameters are freed          scattered after each                sharded
======  ============================  ==================================  =======================

Gradients are summed over ranks, never averaged: the loss is already divided by the tokens of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from atoll.datacenter.compression import attach_hook
from atoll.datacenter.models.moe import routed_of
from atoll.datacenter.parallel.expert import width_shards
from atoll.datacenter.parallel.sum_hook import sum_hook

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.models.spec import ModelSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float8": torch.bfloat16}
"""Dtype of activations by ``[precision] compute``."""


def shard(module: nn.Module, spec: ModelSpec, meshes: Meshes, job: SiloJob) -> None:
    """Shard (``zero1`` to ``zero3``), or replicate by FSDP2 (``ddp`` with other axes), in place.

    Each block is a unit, so that one is gathered while the previous one computes; so are the modules before the blocks
    and those after them, so that the first block does not wait for the output projection.
    """
    settings = _settings(meshes, job)
    stage3 = job.data_parallel.method == "zero3"
    for block in spec.blocks_of(module).values():
        if meshes.sparse is not None and job.memory.checkpointing == "selective":
            _shard_together(block, meshes, settings, reshard=stage3)
            continue
        _shard_experts(block, meshes, job, reshard=stage3)
        _apply(block, job, settings, reshard=stage3)
    if job.data_parallel.method != "ddp":
        for ends in _ends(module, spec):
            fully_shard(ends, reshard_after_forward=False, **settings)
        for name in spec.first:
            _prefetch_nothing_before(getattr(module, name.partition(".")[0], None))
    _apply(module, job, settings, reshard=False)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(enable=True)


def _ends(module: nn.Module, spec: ModelSpec) -> Iterator[list[nn.Module]]:
    """Yield the modules before the blocks, and those after them, that this stage has and that share no parameter."""
    if spec.tied:
        return
    for names in (spec.first, spec.last):
        found = [getattr(module, name.partition(".")[0], None) for name in names]
        if parts := [part for part in found if part is not None and any(True for _ in part.parameters())]:
            yield parts


def _prefetch_nothing_before(first: object) -> None:
    """Let the first unit prefetch itself, which is already gathered, instead of the unit used before it.

    From the second micro-batch on, FSDP's default is to gather the last unit of the previous micro-batch, for nothing.
    """
    if isinstance(first, FSDPModule):
        first.set_modules_to_backward_prefetch([first])


def _shard_experts(block: nn.Module, meshes: Meshes, job: SiloJob, *, reshard: bool) -> None:
    """Shard experts: with ``ep`` they have replicas on fewer ranks than the other parameters."""
    if meshes.sparse is None:
        return
    settings = {**_settings(meshes, job), "mesh": _expert_mesh(meshes)}
    for _, routed in routed_of(block):
        fully_shard(
            routed.experts,
            reshard_after_forward=reshard,
            shard_placement_fn=width_shards(routed.experts),
            **settings,
        )


def _expert_mesh(meshes: Meshes) -> DeviceMesh:
    if meshes.sparse is None:
        raise ValueError("no mesh for experts: ep is 1")
    return meshes.sparse["dp_replicate", "efsdp"] if meshes.dims.dp_replicate > 1 else meshes.sparse["efsdp"]


def _shard_together(block: nn.Module, meshes: Meshes, settings: dict[str, Any], *, reshard: bool) -> None:
    """Shard a block with its experts as one unit: selective checkpointing must not recompute across units.

    The experts' parameters keep their own ranks: each parameter has its own mesh.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import (  # noqa: PLC0415  # torch 2.13 and later
        FSDPMeshInfo,
        HSDPMeshInfo,
        ShardPlacementResult,
    )

    mesh = _expert_mesh(meshes)
    info = FSDPMeshInfo(mesh, 0) if mesh.ndim == 1 else HSDPMeshInfo(mesh, 1, 0)
    placed = {
        parameter: ShardPlacementResult(width_shards(routed.experts)(parameter), info)
        for _, routed in routed_of(block)
        for parameter in routed.experts.parameters()
    }
    fully_shard(block, reshard_after_forward=reshard, shard_placement_fn=placed.get, **settings)


def _apply(module: nn.Module, job: SiloJob, settings: dict[str, Any], *, reshard: bool) -> None:
    if job.data_parallel.method == "ddp":
        replicate(module, **settings)
    else:
        fully_shard(module, reshard_after_forward=reshard, **settings)


def _settings(meshes: Meshes, job: SiloJob) -> dict[str, Any]:
    reduce = DTYPES[job.precision.reduce]
    settings: dict[str, Any] = {"mesh": _mesh(meshes, job), "mp_policy": MixedPrecisionPolicy(reduce_dtype=reduce)}
    if job.precision.compute != "float32":
        compute = DTYPES[job.precision.compute]
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)
    if job.data_parallel.cpu_offload:
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    return settings


def _mesh(meshes: Meshes, job: SiloJob) -> DeviceMesh:
    if job.data_parallel.method == "ddp":
        return meshes.loss
    return meshes.dense["dp_replicate", "fsdp"] if meshes.dims.dp_replicate > 1 else meshes.dense["fsdp"]


def wrap_ddp(module: nn.Module, meshes: Meshes, job: SiloJob) -> DistributedDataParallel:
    """Wrap the module in PyTorch's DDP: gradients are sent in buckets during the backward pass (Li et al. 2020)."""
    wrapped = DistributedDataParallel(
        module,
        process_group=meshes.loss.get_group(),
        bucket_cap_mb=job.data_parallel.bucket_mb,
        gradient_as_bucket_view=True,
    )
    if job.data_parallel.hook == "none":
        wrapped.register_comm_hook(meshes.loss.get_group(), sum_hook)
    else:
        attach_hook(wrapped, job.data_parallel, meshes.loss.get_group())
    return wrapped
