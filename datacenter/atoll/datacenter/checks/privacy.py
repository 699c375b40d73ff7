"""Check that a job can keep the guarantee of ``[privacy]``; refuse other jobs with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.models import spec_of
from atoll.datacenter.privacy.clipping import unsupported

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import ParallelDims

_AXES = {
    "pp": "a sequence's norm covers all layers, and a stage sees only its own",
    "cp": "a sequence's gradient covers all of it, and a rank sees a part",
    "tp": "Opacus' rules need a layer's whole activations, and a rank holds a part of them",
    "ep": "tokens of one sequence go to many ranks, mixed with tokens of other sequences",
}


def check_privacy(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Yield every setting that cannot be combined with ``[privacy]``, one sentence each."""
    if job.privacy is None:
        return
    for axis, reason in _AXES.items():
        if (degree := getattr(dims, axis)) > 1:
            yield f"mesh.{axis} = {degree} with [privacy]: {reason}; set it to 1"
    if job.model.moe is not None:
        yield (
            "[model.moe] with [privacy]: Opacus has no rule for routers and stacked experts, and their balance "
            "depends on the load of all sequences, unclipped; use a dense model"
        )
    else:
        yield from _layers(job)
    yield from _settings(job, job.privacy.mode)


def _settings(job: SiloJob, mode: str) -> Iterator[str]:
    method = job.data_parallel.method
    refused = {
        f'memory.checkpointing = "{job.memory.checkpointing}"': (
            job.memory.checkpointing != "none",
            "activations are recomputed, and would be counted twice",
        ),
        "memory.compile": (job.memory.compile, "Opacus' hooks are not compiled"),
        f'precision.compute = "{job.precision.compute}"': (
            job.precision.compute != "float32",
            "norms would be rounded, and so would clipping",
        ),
        f'data_parallel.hook = "{job.data_parallel.hook}"': (
            job.data_parallel.hook != "none",
            "gradients would be changed after they are clipped",
        ),
        "data_parallel.uneven": (job.data_parallel.uneven, "Poisson sampling decides how many sequences a rank has"),
        "data_parallel.cpu_offload": (job.data_parallel.cpu_offload, "it is not supported"),
        f'privacy.mode = "hooks" with data_parallel.method = "{method}"': (
            mode == "hooks" and method != "ddp",
            "per-sequence gradients need whole parameters; ghost clipping does not",
        ),
        'model.tied_embeddings with privacy.mode = "ghost"': (
            job.model.tied_embeddings and mode == "ghost",
            'the norm of a parameter that is used twice is not the sum of its uses; mode = "hooks" with '
            'data_parallel.method = "ddp" supports it',
        ),
    }
    for what, (wanted, reason) in refused.items():
        if wanted:
            yield f"{what} with [privacy]: {reason}"


def _layers(job: SiloJob) -> Iterator[str]:
    spec = spec_of(job.model)
    with torch.device("meta"):
        module = spec.build()
    spec.freeze(module)
    for problem in unsupported(module):
        yield f'model.kind = "{job.model.kind}" with [privacy]: {problem}'
