"""Train a small model in this world, for tests that compare layouts."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, partialmethod
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.extra import divide_extra_losses
from atoll.datacenter.parallel.context import cut_batches
from atoll.datacenter.train.build import make_passes, make_step
from tests.patience import WAIT_S

ALL_STEPS, FEW_STEPS = 10, 3
STEPS = ALL_STEPS if "ATOLL_TESTS_EVERY_STEP" in os.environ else FEW_STEPS
"""Steps of training in each layout: three show a wrong gradient, optimiser state or schedule; ``--every-step``: ten."""
TOLERANCE = 2e-6
"""Absolute tolerance of losses and parameters after ten steps."""
RELATIVE = 2e-6
"""Tolerance relative to the largest element of a gradient."""
SMALL: dict[str, Any] = {
    "job": {"name": "small", "steps": 10, "seed": 7},
    "model": {"vocab": 64, "layers": 2, "dim": 32, "heads": 4, "kv_heads": 2, "ffn_dim": 64},
    "batch": {"sequence": 16, "global_batch": 8, "micro_batch": 2},
    "optimiser": {"lr": 1e-3, "epsilon": 1e-6},
    "data_parallel": {"method": "ddp"},
}
"""Two blocks. Where a gradient is about AdamW's epsilon, AdamW amplifies rounding: with 1e-8 it shows in one element of
a tensor-parallel layout."""


@dataclass(frozen=True)
class Example:
    """A micro-batch."""

    tokens: Tensor
    labels: Tensor
    documents: Tensor | None = None
    positions: Tensor | None = None


def small(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the small job with these sections replaced."""
    found = {**SMALL, **{name: {**SMALL.get(name, {}), **keys} for name, keys in sections.items()}}
    if found["optimiser"].get("name") == "sgd":  # it has no epsilon
        del found["optimiser"]["epsilon"]
    return found


def method(name: str) -> dict[str, str]:
    return {"method": name}


def small_in_two(ranks: int, **sections: dict[str, Any]) -> dict[str, Any]:
    """The small job with two micro-batches per rank: one holds gradients back, one sends them."""
    mesh = sections.get("mesh", {})
    replicas = ranks // math.prod(mesh.get(axis, 1) for axis in ("pp", "cp", "tp"))
    micro_batch = SMALL["batch"]["global_batch"] // replicas // 2
    return small(**sections | {"batch": {"micro_batch": micro_batch, **sections.get("batch", {})}})


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Losses, gradient norms and every parameter of this rank."""
    torch.testing.assert_close(found["losses"], wanted["losses"], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(found["norms"], wanted["norms"], rtol=TOLERANCE * 10, atol=0)
    for name, value in found["parameters"].items():
        assert (value - wanted["parameters"][name]).abs().max().item() <= TOLERANCE, name


def assert_same_together(found: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> None:
    """Check that shared values are equal on all ranks, and that together they have every parameter."""
    assert {name for one in found for name in one["parameters"]} == set(wanted["parameters"])
    for one in found:
        assert_same(one, wanted)


def assert_same_gradients(found: Sequence[dict[str, Tensor]], wanted: dict[str, Tensor]) -> None:
    """Check that shared gradients are equal on all ranks, and that together they have every parameter's."""
    assert {name for one in found for name in one} == set(wanted)
    for name, gradient in ((name, gradient) for one in found for name, gradient in one.items()):
        off = RELATIVE * wanted[name].abs().max().item()
        torch.testing.assert_close(gradient, wanted[name], rtol=0, atol=off, msg=name)


def train(sections: dict[str, Any], steps: int = STEPS) -> dict[str, Any]:
    """Train on this rank of the world.

    Returns:
        ``losses`` and ``norms`` by step, and ``parameters`` and ``buffers``: this rank's, gathered over their meshes.
    """
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        dims = ParallelDims.of(job.mesh, world.size)
        meshes = Meshes.build(dims, world.device.type)
        step = make_step(job, spec_of(job.model), meshes, world.device)
        outcomes = [step(number, share(job, meshes, number)) for number in range(steps)]
        return {
            "losses": [outcome.loss for outcome in outcomes],
            "norms": [outcome.gradient_norm for outcome in outcomes],
            "parameters": named_whole(step.passes.parts),
            "expert_loads": {name: load.tolist() for name, load in step.expert_loads.items()},
            "buffers": {
                name: value.clone() for part in step.passes.parts for name, value in _bare(part).named_buffers()
            },
        }


def named_whole(parts: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return plain copies of the parameters of a model or of stages."""
    return {name: whole(value) for part in parts for name, value in _named(part)}


def _bare(part: nn.Module) -> nn.Module:
    return part.module if isinstance(part, DistributedDataParallel) else part


def _named(part: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(_bare(part).named_parameters())


def whole(value: Tensor) -> Tensor:
    """Return a plain copy of a parameter."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def share(job: SiloJob, meshes: Meshes, step: int) -> list[Example]:
    """Return this rank's micro-batches where all ranks get the same number of sequences."""
    rank, size = meshes.data["batch"].get_local_rank(), meshes.dims.batch
    return examples(
        job, step, slice(rank * job.batch.global_batch // size, (rank + 1) * job.batch.global_batch // size)
    )


def examples(job: SiloJob, step: int, mine: slice) -> list[Example]:
    """Return micro-batches of random tokens that depend only on the step; some labels do not count."""
    generator = torch.Generator().manual_seed(1000 + step)
    shape = (job.batch.global_batch, job.batch.sequence + 1)
    tokens = torch.randint(job.model.vocab, shape, generator=generator)
    labels = tokens[:, 1:].clone()
    labels[: job.batch.global_batch // 2, :3] = -100
    inputs, wanted = (part[mine].split(job.batch.micro_batch) for part in (tokens[:, :-1], labels))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [Example(*piece) for piece in zip(inputs, wanted, strict=True)]


def gradients(sections: dict[str, Any], backend: str = "inductor") -> dict[str, Any]:
    """Return the gradient of the first step on this rank, before clipping, gathered over meshes.

    Args:
        sections: sections of the job.
        backend: backend of the compiler; ``aot_eager`` generates no code, which is several times faster.
    """
    job = SiloJob.model_validate(sections)
    compiled = partialmethod(nn.Module.compile, backend=backend)
    loss_compiled = patch("atoll.datacenter.parallel.loss.compiled", partial(torch.compile, backend=backend))
    with join_world(WAIT_S) as world, patch.object(nn.Module, "compile", compiled), loss_compiled:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        passes = make_passes(job, spec_of(job.model), meshes, world.device)
        batches = cut_batches(share(job, meshes, 0), job, meshes)
        counted = sum(int((batch.labels != -100).sum()) for batch in batches)
        total = torch.tensor(counted)
        dist.all_reduce(total, group=meshes.loss.get_group())
        divide_extra_losses(passes.parts, float(total), world.device)
        passes(batches, float(total))
        return {
            name: whole(value.grad) for part in passes.parts for name, value in _named(part) if value.grad is not None
        }
