"""Check that a job can keep the guarantee of ``[privacy]``; refuse other jobs with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from atoll.datacenter.models import spec_of
from atoll.datacenter.privacy.clipping import unsupported

if TYPE_CHECKING:
    from torch import nn

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import ParallelDims
    from atoll.datacenter.models import ModelSpec

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
    yield from check_private_layout(job, dims)
    if job.model.moe is not None:
        yield (
            "[model.moe] with [privacy]: Opacus has no rule for routers and stacked experts, and their balance "
            "depends on the load of all sequences, unclipped; use a dense model"
        )
    else:
        yield from _layers(job)
    yield from _settings(job)


def check_private_layout(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Yield every part of the layout that cannot be combined with ``[privacy]``."""
    if job.privacy is None:
        return
    for axis, reason in _AXES.items():
        if (degree := getattr(dims, axis)) > 1:
            yield f"mesh.{axis} = {degree} with [privacy]: {reason}; set it to 1"
    method = job.data_parallel.method
    if job.memory.checkpointing != "none":
        yield (
            f'memory.checkpointing = "{job.memory.checkpointing}" with [privacy]: activations are recomputed, and '
            "would be counted twice"
        )
    if job.privacy.mode == "hooks" and method != "ddp":
        yield (
            f'privacy.mode = "hooks" with data_parallel.method = "{method}" with [privacy]: per-sequence gradients '
            "need whole parameters; ghost clipping does not"
        )


def _settings(job: SiloJob) -> Iterator[str]:
    refused = {
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
    }
    for what, (wanted, reason) in refused.items():
        if wanted:
            yield f"{what} with [privacy]: {reason}"


def _layers(job: SiloJob) -> Iterator[str]:
    spec = spec_of(job.model)
    with torch.device("meta"):
        module = spec.build()
    spec.freeze(module)
    yield from _tied(job, spec, module)
    for problem in unsupported(module):
        yield f'model.kind = "{job.model.kind}" with [privacy]: {problem}'


def _tied(job: SiloJob, spec: ModelSpec, module: nn.Module) -> Iterator[str]:
    """Yield a trained parameter that two modules share, in a model of any kind."""
    tied = [pair for pair in spec.tied if module.get_parameter(pair[0]).requires_grad]
    if tied and job.privacy is not None and job.privacy.mode == "ghost":
        first, second = tied[0]
        yield (
            f'{first}, which is {second} too (tied), with privacy.mode = "ghost": the norm of a parameter that is used '
            'twice is not the sum of its uses; mode = "hooks" with data_parallel.method = "ddp" supports it'
        )
