"""Which jobs keep the promise of ``[privacy]``; the others are refused, with the reason."""

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
    "pp": "a sequence's norm is over all layers, and a stage sees its own alone",
    "cp": "a sequence's gradient is over all of it, and a rank sees a part",
    "tp": "Opacus' rules take a layer's whole activations, and a rank holds a part of them",
    "ep": "tokens of one sequence go to many ranks, mixed with those of others",
}


def check_privacy(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Everything that ``[privacy]`` does not go with, one sentence each."""
    if job.privacy is None:
        return
    for axis, reason in _AXES.items():
        if (degree := getattr(dims, axis)) > 1:
            yield f"mesh.{axis} = {degree} with [privacy]: {reason}; set it to 1"
    if job.model.moe is not None:
        yield (
            "[model.moe] with [privacy]: Opacus has no rule for routers and stacked experts, and what balances them "
            "follows the load of all sequences, unclipped; use a dense model"
        )
    elif job.model.lora is not None:
        yield "[model.lora] with [privacy]: Opacus has no rule for adapters beside a layer; leave out one of the two"
    else:
        yield from _layers(job)
    yield from _settings(job, job.privacy.mode)


def _settings(job: SiloJob, mode: str) -> Iterator[str]:
    method = job.data_parallel.method
    refused = {
        f'memory.checkpointing = "{job.memory.checkpointing}"': (
            job.memory.checkpointing != "none",
            "activations are worked out twice, and would be counted twice",
        ),
        "memory.compile": (job.memory.compile, "Opacus' hooks are not compiled"),
        f'precision.compute = "{job.precision.compute}"': (
            job.precision.compute != "float32",
            "norms would be rounded, and clipping with them",
        ),
        f'data_parallel.hook = "{job.data_parallel.hook}"': (
            job.data_parallel.hook != "none",
            "gradients would be changed after they are clipped",
        ),
        "data_parallel.uneven": (job.data_parallel.uneven, "samples decide how many sequences a rank has"),
        "data_parallel.cpu_offload": (job.data_parallel.cpu_offload, "it is not covered"),
        f'privacy.mode = "hooks" with data_parallel.method = "{method}"': (
            mode == "hooks" and method != "ddp",
            "gradients of single sequences need whole parameters: ghost clipping does not",
        ),
        'model.tied_embeddings with privacy.mode = "ghost"': (
            job.model.tied_embeddings and mode == "ghost",
            'the norm of a parameter that is used twice is not the sum of its uses: mode = "hooks" with '
            'data_parallel.method = "ddp" can do it',
        ),
    }
    for what, (wanted, reason) in refused.items():
        if wanted:
            yield f"{what} with [privacy]: {reason}"


def _layers(job: SiloJob) -> Iterator[str]:
    with torch.device("meta"):
        module = spec_of(job.model).build()
    for problem in unsupported(module):
        yield f'model.kind = "{job.model.kind}" with [privacy]: {problem}'
