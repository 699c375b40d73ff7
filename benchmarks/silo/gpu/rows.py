"""The rows: each measures one claim and yields its figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
import torch.distributed as dist

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import ParallelDims
from atoll.datacenter.metrics.facts import facts_of
from atoll.datacenter.metrics.flops import llama_flops
from atoll.datacenter.models import spec_of
from benchmarks.figures import Figure
from benchmarks.options import progress
from benchmarks.silo.gpu.blocks import ring_attention
from benchmarks.silo.gpu.encoding import encoded
from benchmarks.silo.gpu.hidden import hidden
from benchmarks.silo.gpu.recipe import recipe
from benchmarks.silo.gpu.sizes import Size
from benchmarks.silo.gpu.speed import alone, batches_of, one_rank, seconds_of, trained
from benchmarks.silo.gpu.toggles import turned_off

COMMAND = "python -m benchmarks.silo gpu"
MFU, OF_RECIPE, FLOAT8, PRIVATE, LOSS_IN_CHUNKS = 50.0, 0.98, 1.2, 1.5, 0.98
_OPTIMISERS = ("muon", "adamw")

Row: TypeAlias = Callable[[Size], Iterator[Figure]]


def speed(size: Size) -> Iterator[Figure]:
    """Tokens/s of about a billion parameters, of the peak and beside the recipe, step by step in turn."""
    job = size.job(size.billion, size.batch)
    with one_rank() as world, trained(job, world) as trainer:
        model = spec_of(job.model).build().to(world.device)
        ways = {"trainer": trainer.queue, "recipe": recipe(job, model, batches_of(job, world.device))}
        found = seconds_of(ways, size, world.device, repeats=size.repeats_beside_recipe)
        trainer.settle()
        what = f"{_model(job)}, {_device(world.device)}, {dist.get_backend()}"
        facts = facts_of(job, spec_of(job.model), ParallelDims(), world.device, Path())
    rate = _tokens(job) / found["trainer"]
    yield Figure.stated(f"tokens/s: {what}", rate, "1/s", COMMAND)
    if facts.peak_flops_per_s is not None:
        flops, formula = _causal_flops(job)
        progress(f"FLOPs of a token: {formula}")
        share = 100 * rate * flops / facts.peak_flops_per_s
        yield Figure.at_least(
            "  of the data sheet's peak (MFU; causal attention counted once)", share, "%", MFU, COMMAND
        )
    yield Figure.at_least(
        "  beside torchtitan's recipe", found["recipe"] / found["trainer"], "times", OF_RECIPE, COMMAND
    )


def number_formats(size: Size) -> Iterator[Figure]:
    """About three billion parameters in float8 beside bfloat16, one after the other: both would not fit."""
    plain, fast = (
        alone(size.job(size.three_billion, size.small_batch, precision={"compute": one}), size) for one in size.formats
    )
    job = size.job(size.three_billion, size.small_batch)
    name = f"{size.formats[1]} beside {size.formats[0]}: {_model(job)}"
    yield Figure.at_least(name, plain / fast, "times", FLOAT8, COMMAND)


def loss_in_chunks(size: Size) -> Iterator[Figure]:
    """A step whose loss is computed in chunks of tokens beside one with whole logits, and the memory of both."""
    found, peaks = {}, {}
    for name, chunk in (("chunks", size.loss_chunk_tokens), ("whole", 0)):
        memory = {"compile": size.compiled, "loss_chunk_tokens": chunk}
        job = size.job({**size.billion, "vocab": size.large_vocab}, size.batch, memory=memory)
        found[name] = alone(job, size)
        peaks[name] = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    name = f"loss in chunks of {size.loss_chunk_tokens} tokens beside whole logits: {_model(job)}"
    yield Figure.at_least(name, found["whole"] / found["chunks"], "times", LOSS_IN_CHUNKS, COMMAND)
    for way, peak in peaks.items():
        if peak is not None:
            yield Figure.stated(f"  peak memory, {way}", peak / 2**30, "GiB", COMMAND)


def document_masks(size: Size) -> Iterator[Figure]:
    """A step whose attention stays within documents beside one that attends to the whole row."""
    masked, plain = (
        alone(size.job(size.billion, size.batch, data={"document_masks": on}), size) for on in (True, False)
    )
    job = size.job(size.billion, size.batch)
    name = f"attention within documents beside whole rows: {_model(job)}"
    yield Figure.stated(name, plain / masked, "times", COMMAND)


def muon(size: Size) -> Iterator[Figure]:
    """A step with Muon for the matrices of blocks beside one with AdamW for all."""
    muons, adamws = (alone(size.job(size.billion, size.batch, optimiser={"name": one}), size) for one in _OPTIMISERS)
    name = f"Muon beside AdamW: {_model(size.job(size.billion, size.batch))}"
    yield Figure.stated(name, adamws / muons, "times", COMMAND)


def privacy(size: Size) -> Iterator[Figure]:
    """A step of DP-SGD by ghost clipping beside a plain one, both in float32 and not compiled."""
    common = {"precision": {"compute": "float32"}, "memory": {}}
    plain = size.job(size.billion, size.private_batch, **common)
    private = size.job(size.billion, size.private_batch, **common, privacy={"noise_multiplier": 1.0})
    found = {"plain": alone(plain, size), "private": alone(private, size)}
    name = f"DP-SGD by ghost clipping beside plain SGD: {_model(plain)}"
    yield Figure.within(name, found["private"] * 1e3, "ms", COMMAND, limit=found["plain"] * 1e3, target=PRIVATE)


def killed(_size: Size) -> Iterator[Figure]:
    """A killed rank, over NCCL where there is a GPU."""
    from benchmarks.silo import faults  # noqa: PLC0415  # needs pytest, which a GPU's machine may lack

    ranks = max(1, min(2, torch.cuda.device_count())) if torch.cuda.is_available() else 2
    with tempfile.TemporaryDirectory() as folder:
        yield from faults.killed(Path(folder), ranks=ranks, command=COMMAND)


ROWS: Mapping[str, Row] = {
    "speed": speed,
    "float8": number_formats,
    "loss in chunks": loss_in_chunks,
    "document masks": document_masks,
    "muon": muon,
    "privacy": privacy,
    "encoded update": encoded,
    "exchange hidden": hidden,
    "ring attention": ring_attention,
    "settings turned off": turned_off,
    "killed rank": killed,
}


def _causal_flops(job: SiloJob) -> tuple[float, str]:
    """FLOPs of a token, forward and backward, without the scores above the diagonal, which causal kernels skip."""
    counted = llama_flops(job.model, job.batch.sequence)
    skipped = 6 * job.model.layers * job.model.heads * job.model.head_dim * job.batch.sequence
    return counted.per_token - skipped, f"{counted.formula} - 6 * layers * heads * head_dim * sequence ({skipped:,})"


def _tokens(job: SiloJob) -> int:
    return job.batch.global_batch * job.batch.sequence


def _model(job: SiloJob) -> str:
    parameters = llama_flops(job.model, job.batch.sequence).parameters
    compiled = ", compiled" if job.memory.compile else ""
    return f"{parameters:,} parameters, {job.precision.compute}{compiled}, sequence {job.batch.sequence}"


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
