"""Check that a job fits a number of ranks: everything that can be known before a process starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from atoll.datacenter.checks.asynchrony import check_asynchrony
from atoll.datacenter.checks.model import check_model
from atoll.datacenter.checks.parallel import check_context_parallel, check_experts
from atoll.datacenter.checks.pipeline import check_pipeline
from atoll.datacenter.checks.privacy import check_privacy
from atoll.datacenter.checks.recovery import check_recovery
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.parallel import FEEDBACK_HOOKS
from atoll.datacenter.mesh.dims import ParallelDims

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob

Check: TypeAlias = "Callable[[SiloJob, ParallelDims], Iterator[str]]"
"""Yields problems, one sentence each, with the numbers and the remedy."""


def check_layout(job: SiloJob, world_size: int) -> ParallelDims:
    """Return the job's degrees on this many ranks.

    Raises:
        LayoutError: listing every problem.
    """
    if job.asynchrony is not None:
        return check_asynchrony(job, world_size)
    try:
        dims = ParallelDims.of(job.mesh, world_size)
    except LayoutError as error:
        raise LayoutError(*error.problems, *_whatever_the_world(job)) from None
    problems = [problem for check in CHECKS for problem in check(job, dims)]
    if problems:
        raise LayoutError(*problems)
    return dims


def check_batch(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Require the same whole number of micro-batches on every data-parallel rank, unless shares are uneven."""
    total, micro = job.batch.global_batch, job.batch.micro_batch
    if job.data_parallel.uneven:
        if total < dims.batch * micro:
            yield (
                f"batch.global_batch = {total} is less than one micro_batch = {micro} for each of the {dims.batch} "
                "data-parallel ranks"
            )
    elif total % (dims.batch * micro):
        fitting = -(-total // (dims.batch * micro)) * dims.batch * micro
        yield (
            f"batch.global_batch = {total} is not a multiple of dp_replicate {dims.dp_replicate} * dp_shard "
            f"{dims.dp_shard} * micro_batch {micro} = {dims.batch * micro}: set {fitting}, or change the degrees"
        )


def check_tensor_parallel(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Require that ``tp`` divides heads, widths, vocabulary and sequence."""
    if dims.tp == 1 or job.model.kind != "llama":
        return
    sizes = {
        "model.heads": job.model.heads,
        "model.kv_heads": job.model.kv_heads,
        "model.vocab": job.model.vocab,
    }
    if job.model.moe is None:
        sizes["model.ffn_dim"] = job.model.ffn_dim
    for key, size in sizes.items():
        if size % dims.tp:
            yield f"mesh.tp = {dims.tp} does not divide {key} = {size}"
    yield from _overlap(job)
    parts = dims.tp * dims.cp
    if job.tensor_parallel.sequence and job.batch.sequence % parts:
        yield (
            f"mesh.tp * mesh.cp = {dims.tp} * {dims.cp} = {parts} does not divide batch.sequence = "
            f"{job.batch.sequence}: set tensor_parallel.sequence = false, or another length"
        )


def _overlap(job: SiloJob) -> Iterator[str]:
    if job.tensor_parallel.asynchronous and not job.memory.compile:
        yield (
            "tensor_parallel.asynchronous = true is a transformation of compiled blocks: set memory.compile = true, or "
            "leave it out"
        )


def check_gathered(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Refuse ``checkpointing = "gathered"`` unless tensor parallelism gathers divided sequences."""
    if job.memory.checkpointing != "gathered":
        return
    if dims.tp == 1 or not job.tensor_parallel.sequence:
        yield (
            f'memory.checkpointing = "gathered" with mesh.tp = {dims.tp} and tensor_parallel.sequence = '
            f'{str(job.tensor_parallel.sequence).lower()}: nothing is gathered along the sequence; set "none", or '
            "mesh.tp above 1 with sequence = true"
        )


def check_data_parallel(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Refuse features of PyTorch's DDP on a mesh with other axes, and methods that would shard nothing."""
    section = job.data_parallel
    others = dims.world_size // dims.batch
    if section.method == "ddp" and others > 1:
        for key, wanted in (
            ("hook", section.hook != "none"),
            ("uneven", section.uneven),
        ):
            if wanted:
                yield (
                    f"data_parallel.{key} works on whole replicas only, but pp * cp * tp = {others}: set these "
                    "to 1, or leave it out"
                )
    if section.hook in FEEDBACK_HOOKS and job.precision.compute == "float16":
        yield (
            f'data_parallel.hook = "{section.hook}" keeps parts of gradients for later steps, but '
            'precision.compute = "float16" changes their scale: set "bfloat16", or hook = "float16"'
        )
    if section.method != "ddp" and dims.dp_replicate > 1 and dims.fsdp == 1:
        yield (
            f'data_parallel.method = "{section.method}" with dp_replicate = {dims.dp_replicate} and dp_shard * cp = 1 '
            'shards nothing: set dp_shard, or method = "ddp"'
        )


def check_precision(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Refuse to gather in float8 without FSDP, or from the host."""
    del dims
    section = job.data_parallel
    if job.precision.float8_gather and (section.method == "ddp" or section.cpu_offload):
        found = "cpu_offload = true" if section.cpu_offload else 'method = "ddp"'
        yield (
            f"precision.float8_gather = true with data_parallel.{found}: matrices are not gathered from the devices of "
            'other ranks; leave it out, or set method = "zero1", "zero2" or "zero3" without cpu_offload'
        )


def _whatever_the_world(job: SiloJob) -> Iterator[str]:
    """Yield problems that do not depend on the number of ranks."""
    mesh = job.mesh
    dims = ParallelDims(pp=mesh.pp, cp=mesh.cp, tp=mesh.tp)
    for check in (check_tensor_parallel, check_context_parallel, check_precision, check_model):
        yield from check(job, dims)


CHECKS: tuple[Check, ...] = (
    check_batch,
    check_tensor_parallel,
    check_gathered,
    check_data_parallel,
    check_context_parallel,
    check_experts,
    check_precision,
    check_pipeline,
    check_model,
    check_privacy,
    check_recovery,
)
