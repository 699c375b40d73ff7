"""Build the parts that run a job's steps: model, optimiser, passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.datacenter.parallel.apply import make_bare, make_model, make_stages
from atoll.datacenter.parallel.loss import Loss
from atoll.datacenter.parallel.passes import Passes, PlainPasses
from atoll.datacenter.parallel.pipeline.passes import PipelinePasses
from atoll.datacenter.parallel.uneven import Stopwatch
from atoll.datacenter.privacy.passes import PrivatePasses
from atoll.datacenter.train.muon import is_hidden_matrix
from atoll.datacenter.train.optimiser import make_optimiser
from atoll.datacenter.train.scale import LossScale
from atoll.datacenter.train.step import Step

if TYPE_CHECKING:
    import torch

    from atoll.datacenter.elastic.replicas.member import Member
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh import Meshes
    from atoll.datacenter.models.spec import ModelSpec
    from atoll.datacenter.privacy import Mechanism


def make_step(
    job: SiloJob,
    spec: ModelSpec,
    meshes: Meshes,
    device: torch.device,
    mechanism: Mechanism | None = None,
    member: Member | None = None,
) -> Step:
    """Build model, optimiser and passes of a job on this rank; collective.

    Args:
        job: validated against the mesh.
        spec: spec of the job's model.
        meshes: device meshes of the world.
        device: device of this rank.
        mechanism: required for a job with ``[privacy]``.
        member: required for a job with recovery in place.
    """
    passes = make_passes(job, spec, meshes, device, mechanism)
    named = [pair for part in passes.parts for pair in part.named_parameters()]
    hidden = [parameter for name, parameter in named if is_hidden_matrix(name, parameter, spec.blocks)]
    optimiser = make_optimiser([parameter for _, parameter in named], job.optimiser, hidden)
    scaled = job.precision.compute == "float16"
    scale = LossScale(job.precision.initial_scale if scaled else 1.0, dynamic=scaled)
    return Step(passes, optimiser, job, meshes, scale, device, member)


def make_passes(
    job: SiloJob, spec: ModelSpec, meshes: Meshes, device: torch.device, mechanism: Mechanism | None = None
) -> Passes:
    """Build the model, or this rank's stages of it, and the passes that run it; collective.

    Raises:
        ValueError: if the job has ``[privacy]`` and there is no mechanism.
    """
    if job.privacy is not None:
        if mechanism is None:
            raise ValueError("a job with [privacy] needs its mechanism: see privacy.open_private")
        return PrivatePasses(make_bare(job, spec, meshes, device), spec, job, meshes, device, mechanism, job.privacy)
    if meshes.dims.pp == 1:
        watch = Stopwatch(device) if job.data_parallel.uneven else None
        return PlainPasses(make_model(job, spec, meshes, device), Loss.of(job, spec, meshes), job, device, watch)
    stages, deal = make_stages(job, spec, meshes, device)
    return PipelinePasses(stages, deal, spec, job, meshes, device)
