"""Check that a job fits its context and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.torch_version import TORCH

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh.dims import ParallelDims

SHARDS_BY_PARAMETER = TORCH >= (2, 13)
"""Whether FSDP can shard the parameters of one unit over different sets of ranks."""
COMPILES_RING = TORCH >= (2, 13)
"""Whether compiled blocks get gradients through ring attention: with torch 2.11 they are 0, without an error."""


def check_context_parallel(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Require that ``cp`` divides the sequence, and for Ulysses also the heads."""
    if dims.cp == 1:
        return
    ring = job.context_parallel.method == "ring"
    pieces = dims.cp * (2 if ring else 1)
    if job.batch.sequence % pieces:
        said = f"2 * mesh.cp = {pieces} pieces (ring: two for each rank)" if ring else f"mesh.cp = {dims.cp} pieces"
        longer = -(-job.batch.sequence // pieces) * pieces
        yield f"batch.sequence = {job.batch.sequence} cannot be cut into {said}: set {longer}, or change mesh.cp"
    if ring and job.memory.compile and not COMPILES_RING:
        yield (
            'memory.compile = true with context_parallel.method = "ring" needs torch 2.13 (here: '
            f"{torch.__version__}), because gradients would be wrong: install it, or set memory.compile = false or "
            'method = "ulysses"'
        )
    if job.model.kind == "vision":
        yield f'mesh.cp = {dims.cp}: model.kind = "vision" has no causal attention over a sequence; set cp = 1'
    if ring or job.model.kind != "llama":
        return
    parts = dims.cp * dims.tp
    for key, heads in (("model.heads", job.model.heads), ("model.kv_heads", job.model.kv_heads)):
        if heads % parts:
            yield (
                f"{key} = {heads} cannot be divided among mesh.cp {dims.cp} * mesh.tp {dims.tp} = {parts} ranks: set "
                'context_parallel.method = "ring", or change the degrees'
            )


def check_experts(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Require that ``ep`` divides the experts, and that ``tp`` and ``efsdp`` divide the sizes of each expert."""
    moe = job.model.moe
    if moe is not None and moe.padded and dims.cp > 1:
        yield (
            f"model.moe.padded = true with mesh.cp = {dims.cp}: each rank would send the capacity of whole sequences "
            "for its part of them; set padded = false, or cp = 1"
        )
    if dims.tp > 1 and moe is not None and moe.expert_dim % dims.tp:
        yield f"mesh.tp = {dims.tp} does not divide model.moe.expert_dim = {moe.expert_dim}"
    if dims.ep == 1:
        return
    if job.model.kind in {"llama", "vision"} and moe is None:
        yield f"mesh.ep = {dims.ep}, but the job has no [model.moe]: set ep = 1"
    if moe is not None and moe.experts % dims.ep:
        yield f"mesh.ep = {dims.ep} does not divide model.moe.experts = {moe.experts}"
    if moe is not None and job.model.dim % dims.efsdp:
        yield (
            f"each expert is sharded along model.dim = {job.model.dim}, which dp_shard {dims.dp_shard} * cp {dims.cp} "
            f"/ ep {dims.ep} = {dims.efsdp} ranks do not divide: change the degrees"
        )
    if job.data_parallel.method == "ddp":
        yield (
            f'data_parallel.method = "ddp" keeps whole replicas, but mesh.ep = {dims.ep} distributes experts: set '
            '"zero1", "zero2" or "zero3"'
        )
    if job.memory.checkpointing == "selective" and not SHARDS_BY_PARAMETER:
        yield (
            f'memory.checkpointing = "selective" with experts distributed by mesh.ep = {dims.ep} needs torch 2.13 '
            f'(here: {torch.__version__}): install it, or set "full", or ep = 1'
        )
