"""Check that the job's model can be built, and that it fits the checkpoint it starts from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job.huggingface import check_weights
from atoll.datacenter.job.loss_chunks import why_whole
from atoll.datacenter.models.kinds import spec_of
from atoll.datacenter.models.pretrained import check_positions

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh.dims import ParallelDims
    from atoll.datacenter.models.spec import ModelSpec


_CUTTING_AXES = ("pp", "cp", "tp", "ep")


def check_model(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Check the model's kind and settings, the adapters' targets, and the sizes in the checkpoint's config."""
    try:
        spec = spec_of(job.model)
        with torch.device("meta"):
            spec.build()
        check_weights(job.model)
        if job.model.kind == "transformers" and ":" not in job.data.source:  # own data has a length of its own
            check_positions(job.model, job.batch.sequence)
    except LayoutError as error:
        yield from error.problems
    else:
        yield from _plain(job, spec, dims)
        yield from _chunks(job, spec, dims)
        yield from check_documents(job, spec, dims)
        yield from check_muon(job, blocks=bool(spec.blocks))


def check_muon(job: SiloJob, *, blocks: bool) -> Iterator[str]:
    """Refuse Muon where there are no matrices for it, or where it would be wrong or far too slow.

    Args:
        job: the job.
        blocks: whether the model's spec names its blocks.
    """
    if job.optimiser.name != "muon":
        return
    refused = {
        "a model whose spec names no blocks": (not blocks, "Muon trains only the matrices of repeated blocks"),
        "[model.moe]": (job.model.moe is not None, "experts are stacked, and Muon takes single matrices"),
        "data_parallel.cpu_offload = true": (
            job.data_parallel.cpu_offload,
            "matrices would be orthogonalised on the host",
        ),
    }
    for what, (wanted, reason) in refused.items():
        if wanted:
            yield f'optimiser.name = "muon" with {what}: {reason}; set "adamw", or leave the other out'


def check_documents(job: SiloJob, spec: ModelSpec, dims: ParallelDims) -> Iterator[str]:
    """Refuse document masks where attention does not support them."""
    if not job.data.document_masks:
        return
    if not spec.documents:
        yield (
            f'data.document_masks = true: a model of kind "{job.model.kind}" takes no documents; set it to false, or '
            "return a ModelSpec with documents = True"
        )
    if dims.cp > 1 and job.context_parallel.method == "ring":
        yield (
            f'data.document_masks = true with mesh.cp = {dims.cp}: context_parallel.method = "ring" has no masks; set '
            '"ulysses", mesh.cp = 1, or document_masks = false'
        )
    if job.privacy is not None:
        yield (
            "data.document_masks = true with [privacy]: a sample is a row there, so that its documents are protected "
            "together; set data.packing = false for one document in a row, and document_masks = false"
        )


def _chunks(job: SiloJob, spec: ModelSpec, dims: ParallelDims) -> Iterator[str]:
    """Refuse ``loss_chunk_tokens`` where the loss cannot be computed in chunks."""
    asked = job.memory.loss_chunk_tokens
    if asked and (reason := why_whole(job, tp=dims.tp, head=spec.head is not None)) is not None:
        yield f"memory.loss_chunk_tokens = {asked} is not possible: {reason}; or leave it out"


def _plain(job: SiloJob, spec: ModelSpec, dims: ParallelDims) -> Iterator[str]:
    """Yield mesh axes that would cut inside a plain module, and settings for blocks that it does not have."""
    if spec.weights is None:
        return
    for axis in _CUTTING_AXES:
        if (degree := getattr(dims, axis)) > 1:
            yield (
                f"mesh.{axis} = {degree}: a plain module is replicated or sharded, never cut inside; set it to 1, or "
                "return a ModelSpec"
            )
    if job.model.weights is not None and job.model.kind != "transformers":
        yield (
            f'model.weights with kind = "{job.model.kind}" has no effect: the module has its weights; load them in the '
            "function that returns it, or leave it out"
        )
    if not spec.blocks:
        for key, wanted in (("compile", job.memory.compile), ("checkpointing", job.memory.checkpointing != "none")):
            if wanted:
                yield (
                    f"memory.{key} works on repeated blocks, and the module has no ModuleList or ModuleDict of modules "
                    "of one class: leave it out"
                )
