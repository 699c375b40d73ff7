"""Steps of small jobs on this process's device. ``python -m tests.datacenter.gpu.steps FILE`` saves those of all cases.

Run without a GPU (``CUDA_VISIBLE_DEVICES=``), that file holds what the GPU's steps must equal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.privacy import Budget, Mechanism, Secret
from atoll.datacenter.train.build import make_step
from tests.datacenter.training import Example, examples, named_whole, small
from tests.patience import WAIT_S

STEPS = 4
_MODEL = {"head_dim": 16} | {"dim": 64, "heads": 4, "kv_heads": 2, "ffn_dim": 128}
_MOE = {"experts": 4, "top_k": 2, "expert_dim": 32}
_ZERO3 = {"method": "zero3"}
_PRIVATE = {"noise_multiplier": 0.0, "max_grad_norm": 0.5}
CASES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "ddp": {},
    "zero3": {"data_parallel": _ZERO3},
    "weights on the host": {"data_parallel": {**_ZERO3, "cpu_offload": True}},
    "compiled": {"data_parallel": _ZERO3, "memory": {"compile": True}},
    "recomputed": {"data_parallel": _ZERO3, "memory": {"checkpointing": "full"}},
    "recomputed in part": {"data_parallel": _ZERO3, "memory": {"checkpointing": "selective", "compile": True}},
    "loss in chunks": {"memory": {"loss_chunk_tokens": 8}},
    "muon": {"data_parallel": _ZERO3, "optimiser": {"name": "muon"}},
    "experts": {"model": {"moe": _MOE}},
    "padded experts": {"model": {"moe": {**_MOE, "capacity_factor": 2.0, "padded": True}}, "memory": {"compile": True}},
    "clipped by sequence, ghosts": {"privacy": {**_PRIVATE, "mode": "ghost"}},
    "clipped by sequence, hooks": {"privacy": {**_PRIVATE, "mode": "hooks"}},
}
"""Jobs in float32, as sections that replace the small job's."""


def sections_of(case: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    optimiser = {"epsilon": 1e-6, **case.get("optimiser", {})}  # see ``tests.datacenter.training.SMALL``
    return small(**{**case, "model": {**_MODEL, **case.get("model", {})}, "optimiser": optimiser})


def steps_of(sections: dict[str, Any]) -> dict[str, Any]:
    """Return ``losses`` and ``norms`` by step, and ``parameters`` after them, on the host."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S, on_host=job.data_parallel.cpu_offload) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        step = make_step(job, spec_of(job.model), meshes, world.device, _mechanism(job))
        outcomes = [step(number, _batches(job, number, world.device)) for number in range(STEPS)]
        return {
            "losses": [outcome.loss for outcome in outcomes],
            "norms": [outcome.gradient_norm for outcome in outcomes],
            "parameters": {
                name.removeprefix("module."): value.cpu() for name, value in named_whole(step.passes.parts).items()
            },
        }


def _batches(job: SiloJob, step: int, device: torch.device) -> list[Example]:
    whole = examples(job, step, slice(None))
    return [Example(one.tokens.to(device), one.labels.to(device)) for one in whole]


def _mechanism(job: SiloJob) -> Mechanism | None:
    if job.privacy is None:
        return None
    return Mechanism(Budget(job.privacy.noise_multiplier or 0.0, 0.1, 1e-5, "rdp"), Secret((3, 4)))


if __name__ == "__main__":
    torch.save({name: steps_of(sections_of(case)) for name, case in CASES.items()}, sys.argv[1])
