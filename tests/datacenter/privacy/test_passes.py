"""DP-SGD: without noise and clipping it is plain training, clipping is each sequence's own, noise is drawn by shard."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.mesh.shards import local_shard
from atoll.datacenter.models import spec_of
from atoll.datacenter.privacy import Budget, Mechanism, Secret
from atoll.datacenter.train.build import make_step
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import Example, assert_same, small, whole
from tests.patience import WAIT_S

SECRET = (3, 4)
HUGE = 1e6
LIMIT = 0.5
STEPS = 4
BATCH, ROWS = 8, 2


def private(clip: float, noise: float, mode: str = "ghost", **sections: dict[str, Any]) -> dict[str, Any]:
    return small(privacy={"noise_multiplier": noise, "max_grad_norm": clip, "mode": mode}, **sections)


def examples(job: SiloJob, meshes: Meshes, step: int) -> list[Example]:
    """This rank's micro-batches: every label counts."""
    tokens = torch.randint(
        job.model.vocab, (BATCH, job.batch.sequence + 1), generator=torch.Generator().manual_seed(step)
    )
    rank, size = meshes.data["batch"].get_local_rank(), BATCH // meshes.dims.batch
    mine = tokens[rank * size : (rank + 1) * size]
    return [Example(piece[:, :-1], piece[:, 1:]) for piece in torch.split(mine, ROWS)]


def mechanism(job: SiloJob) -> Mechanism | None:
    if job.privacy is None:
        return None
    return Mechanism(Budget(job.privacy.noise_multiplier or 0.0, 0.1, 1e-5, "rdp"), Secret(SECRET))


def train(sections: dict[str, Any]) -> dict[str, Any]:
    """Train on this rank of the world; as ``tests.datacenter.training.train``."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        step = make_step(job, spec_of(job.model), meshes, world.device, mechanism(job))
        outcomes = [step(number, examples(job, meshes, number)) for number in range(STEPS)]
        (part,) = step.passes.parts
        return {
            "losses": [outcome.loss for outcome in outcomes],
            "norms": [outcome.gradient_norm for outcome in outcomes],
            "parameters": {name.removeprefix("module."): whole(value) for name, value in part.named_parameters()},
        }


def gradients(sections: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Whole gradients of one step, and what this rank holds of each."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        passes = make_step(job, spec_of(job.model), meshes, world.device, mechanism(job)).passes
        passes(examples(job, meshes, 0), BATCH * job.batch.sequence)
        found = [(name, value.grad) for part in passes.parts for name, value in part.named_parameters()]
        named = {name: gradient for name, gradient in found if gradient is not None}
        return {
            "whole": {name: whole(gradient) for name, gradient in named.items()},
            "held": {name: local_shard(gradient)[0].clone() for name, gradient in named.items()},
        }


LAYOUTS = [
    pytest.param(2, "ghost", {}, id="ghost-ddp-2"),
    pytest.param(2, "hooks", {}, id="hooks-ddp-2"),
    pytest.param(2, "ghost", {"data_parallel": {"method": "zero3"}}, id="ghost-zero3-2"),
    pytest.param(2, "ghost", {"data_parallel": {"method": "zero1"}}, id="ghost-zero1-2"),
    pytest.param(2, "ghost", {"data_parallel": {"method": "zero2"}}, id="ghost-zero2-2"),
    pytest.param(4, "ghost", {"data_parallel": {"method": "zero3"}, "mesh": {"dp_replicate": 2}}, id="ghost-hybrid-4"),
]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """One process without privacy."""
    found: dict[str, Any] = run_ranks(train, 1, small())[0]
    return found


@pytest.mark.parametrize(("ranks", "mode", "sections"), LAYOUTS)
def test_without_noise_and_clipping_it_is_plain_training(
    ranks: int, mode: str, sections: dict[str, Any], plain: dict[str, Any]
) -> None:
    for found in run_ranks(train, ranks, private(HUGE, 0.0, mode, **sections)):
        assert_same(found, plain)


def clipped_one_by_one(limit: float, sections: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """Algorithm 1 of Abadi et al. 2016, without noise, a sequence at a time by PyTorch alone."""
    job = SiloJob.model_validate(small(**(sections or {})))
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        spec = spec_of(job.model)
        (module,) = make_step(job, spec, meshes, world.device).passes.parts
        parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for example in examples(job, meshes, 0):
            for row in range(ROWS):
                loss = spec.loss(module(example.tokens[row : row + 1]), example.labels[row : row + 1])
                found = torch.autograd.grad(loss / job.batch.sequence, list(parameters.values()))
                norm = torch.cat([gradient.flatten() for gradient in found]).norm()
                for name, gradient in zip(parameters, found, strict=True):
                    sums[name] += gradient * min(1.0, limit / norm.item())
        return {name: value / BATCH for name, value in sums.items()}


@pytest.fixture(scope="module")
def one_by_one() -> dict[str, Tensor]:
    """The gradient by a plain loop."""
    found: dict[str, Tensor] = run_ranks(clipped_one_by_one, 1, LIMIT)[0]
    return found


@pytest.mark.parametrize(("ranks", "mode", "sections"), LAYOUTS[:3])
def test_each_sequence_is_clipped_by_itself(
    ranks: int, mode: str, sections: dict[str, Any], one_by_one: dict[str, Tensor]
) -> None:
    total = torch.cat([value.flatten() for value in one_by_one.values()]).norm().item()
    assert total < LIMIT * 0.9  # they were clipped, and do not all point one way
    for found in run_ranks(gradients, ranks, private(LIMIT, 0.0, mode, **sections)):
        for name, value in found["whole"].items():
            torch.testing.assert_close(value, one_by_one[name], rtol=1e-4, atol=1e-6)


def test_noise_is_what_one_process_would_draw_and_of_the_right_size() -> None:
    noise, limit = 2.0, 0.5
    many: dict[str, Any] = {"model": {"layers": 4}}
    (quiet,) = run_ranks(gradients, 1, private(limit, 0.0, **many))
    (alone,) = run_ranks(gradients, 1, private(limit, noise, **many))
    replicas = run_ranks(gradients, 2, private(limit, noise, **many))
    shards = run_ranks(gradients, 2, private(limit, noise, data_parallel={"method": "zero3"}, **many))
    for found in (*replicas, *shards):
        for name, value in found["whole"].items():
            torch.testing.assert_close(value, alone["whole"][name], rtol=1e-5, atol=2e-6)
    drawn = torch.cat([(alone["whole"][name] - quiet["whole"][name]).flatten() for name in alone["whole"]])
    assert drawn.numel() > 30_000
    assert drawn.std().item() == pytest.approx(noise * limit / BATCH, rel=0.02)
    assert abs(drawn.mean().item()) < 4 * noise * limit / BATCH / drawn.numel() ** 0.5
    first, second = (one["held"]["output.weight"] for one in shards)
    assert first.shape == second.shape
    together = torch.stack([first.flatten(), second.flatten()])
    assert abs(torch.corrcoef(together)[0, 1].item()) < 0.1


def test_noise_is_another_at_each_step_and_in_each_parameter() -> None:
    (found,) = run_ranks(two_steps, 1, private(1.0, 1.0))
    assert abs(found["between steps"]) < 0.1
    assert abs(found["between parameters"]) < 0.1


def two_steps(sections: dict[str, Any]) -> dict[str, float]:
    """Correlations of the gradients of a batch without labels that count: noise alone, even if a sample is empty."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        passes = make_step(job, spec_of(job.model), meshes, world.device, mechanism(job)).passes
        empty = Example(torch.zeros(1, 16, dtype=torch.int64), torch.full((1, 16), -100))
        seen = []
        for _ in range(2):
            passes([empty], 1.0)
            named = dict(passes.parts[0].named_parameters())
            seen.append({name: whole(value.grad).flatten() for name, value in named.items() if value.grad is not None})
            for value in named.values():
                value.grad = None
        first, second = "blocks.0.feed_forward.w1.weight", "blocks.1.feed_forward.w1.weight"
        return {
            "between steps": torch.corrcoef(torch.stack([seen[0][first], seen[1][first]]))[0, 1].item(),
            "between parameters": torch.corrcoef(torch.stack([seen[0][first], seen[0][second]]))[0, 1].item(),
        }


@pytest.mark.parametrize("mode", ["ghost", "hooks"])
def test_norms_of_queries_and_keys_are_clipped_with_the_rest(mode: str) -> None:
    """Inputs of these norms have four dims. Without noise and clipping it is plain training."""
    sections: dict[str, dict[str, Any]] = {"model": {"qk_norm": True, "head_dim": 16}, "optimiser": {"epsilon": 1e-6}}
    (without,) = run_ranks(train, 1, small(**sections))
    (found,) = run_ranks(train, 1, private(HUGE, 0.0, mode, **sections))
    assert_same(found, without)
