"""Whether a job's loss is computed in chunks of tokens, and how many tokens a chunk has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.datacenter.job.parallel import SPLIT_BACKWARD
from atoll.datacenter.torch_version import TORCH

if TYPE_CHECKING:
    from atoll.datacenter.job.silo_job import SiloJob

DEFAULT_CHUNK_TOKENS = 1024
"""Enough rows for matrix products at full speed; with 128,256 classes a chunk's logits take 0.5 GiB in float32."""

SPLITS_CHUNKS = TORCH >= (2, 13)
"""Whether gradients of the loss in chunks can be taken in two passes: torch 2.11 frees its node after the first."""


def loss_chunk_tokens(job: SiloJob, *, micro_batch: int, cp: int, tp: int, head: bool) -> int | None:
    """Return the tokens of one chunk; None if the logits of a micro-batch are computed whole.

    Args:
        job: the parsed job file.
        micro_batch: sequences of one forward pass.
        cp: degree of context parallelism.
        tp: degree of tensor parallelism.
        head: whether the model's spec names its ``head``, which has no adapter.
    """
    if why_whole(job, tp=tp, head=head) is not None:
        return None
    chosen = job.memory.loss_chunk_tokens
    chunk = DEFAULT_CHUNK_TOKENS if chosen is None else chosen
    return chunk if 0 < chunk < micro_batch * job.batch.sequence // cp else None


def compiles_loss(job: SiloJob, *, tp: int) -> bool:
    """Return whether the loss is compiled, whole or a chunk at a time; not for classes divided over ``tp`` ranks."""
    return job.memory.compile and tp == 1


def why_whole(job: SiloJob, *, tp: int, head: bool) -> str | None:
    """Return why the loss of this job needs whole logits, with the remedy; None if it can be computed in chunks."""
    if not head:
        return (
            "the model's spec names no head, or its head has an adapter: return a ModelSpec with one, and leave it out "
            "of model.lora.targets"
        )
    if job.privacy is not None:
        return "[privacy] clips the gradient of each sequence in the output projection itself"
    if tp > 1 and not job.tensor_parallel.loss:
        return f"mesh.tp = {tp} with tensor_parallel.loss = false gathers the logits: set tensor_parallel.loss = true"
    if job.mesh.pp > 1 and job.pipeline.schedule in SPLIT_BACKWARD and not SPLITS_CHUNKS:
        return (
            f'schedule "{job.pipeline.schedule}" takes gradients in two passes, which chunks allow from torch 2.13 on: '
            "install it, or choose another schedule"
        )
    return None
