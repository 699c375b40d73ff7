"""Muon beside AdamW: PyTorch's own Muon on whole matrices, and the same bits where they are sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.training import OptimiserSection
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.memory import kept
from atoll.datacenter.plan.stages import shares
from atoll.datacenter.train.build import make_step
from atoll.datacenter.train.muon import is_hidden_matrix
from atoll.datacenter.train.optimiser import make_optimiser
from tests.datacenter.ranks import run_ranks
from tests.datacenter.train.test_trainer import JOB, run
from tests.datacenter.training import method, named_whole, small
from tests.patience import WAIT_S

MUON = {"optimiser": {"name": "muon", "lr": 1e-2}}
STEPS = 3


def gradient(name: str, parameter: Tensor, step: int) -> Tensor:
    """A whole gradient that depends on name and step alone."""
    seed = 1000 * step + sum(map(ord, name)) % 997
    return torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))


def updated(sections: dict[str, Any]) -> dict[str, Tensor]:
    """Run steps of the optimiser in a layout, from gradients that are the same in each; return whole parameters."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        made = make_step(job, spec_of(job.model), meshes, world.device)
        for step in range(STEPS):
            for part in made.passes.parts:
                for name, parameter in part.named_parameters():
                    whole = gradient(name.removeprefix("module."), parameter, step)
                    if isinstance(parameter, DTensor):
                        whole = distribute_tensor(
                            whole, parameter.device_mesh, parameter.placements, src_data_rank=None
                        )
                    parameter.grad = whole
            made.optimiser.step()
        return named_whole(made.passes.parts)


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    (found,) = run_ranks(updated, 1, small(**MUON))
    return dict(found)


def test_it_is_pytorchs_muon_for_matrices_of_blocks_and_adamw_for_the_rest(alone: dict[str, Tensor]) -> None:
    parameters = {name: nn.Parameter(value) for name, value in run_ranks(initial, 1, small(**MUON))[0].items()}
    hidden = [one for name, one in parameters.items() if name.startswith("blocks.") and one.dim() == 2]
    rest = [one for name, one in parameters.items() if not (name.startswith("blocks.") and one.dim() == 2)]
    decays = [{"params": [one for one in rest if one.dim() == 2]}, {"params": [one for one in rest if one.dim() == 1]}]
    decays[1]["weight_decay"] = 0.0  # type: ignore[assignment]  # groups hold numbers too
    section = OptimiserSection()
    both = [
        torch.optim.Muon(hidden, lr=1e-2, weight_decay=section.weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            decays, lr=1e-2, betas=section.betas, eps=1e-6, weight_decay=section.weight_decay, fused=True
        ),
    ]
    for step in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = gradient(name, parameter, step)
        for optimiser in both:
            optimiser.step()
    assert len(hidden) == 2 * 7
    for name, parameter in parameters.items():
        assert torch.equal(alone[name], parameter), name


def initial(sections: dict[str, Any]) -> dict[str, Tensor]:
    """Return the parameters before the first step."""
    job = SiloJob.model_validate(sections)
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        return named_whole(make_step(job, spec_of(job.model), meshes, world.device).passes.parts)


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"data_parallel": method("ddp")}, id="ddp-2"),
        pytest.param(3, {"data_parallel": method("zero3")}, id="zero3-3-uneven"),
        pytest.param(2, {"mesh": {"pp": 2}, "pipeline": {"schedule": "1f1b"}}, id="1f1b-2"),
        pytest.param(4, {"data_parallel": method("zero2"), "mesh": {"tp": 2}}, id="zero2-2-tp-2"),
        pytest.param(4, {"data_parallel": method("zero3"), "mesh": {"dp_replicate": 2}}, id="hybrid-2x2"),
    ],
)
def test_sharded_matrices_are_updated_to_the_bits_of_whole_ones(
    ranks: int, sections: dict[str, Any], alone: dict[str, Tensor]
) -> None:
    batch = {"global_batch": 12, "micro_batch": 1}
    found = run_ranks(updated, ranks, small(**MUON, batch=batch, **{"data_parallel": method("ddp"), **sections}))
    assert {name for one in found for name in one} == set(alone)
    for one in found:
        for name, value in one.items():
            assert torch.equal(value, alone[name]), name


def test_a_job_that_was_stopped_goes_on_with_its_momentum(tmp_path: Path) -> None:
    kept_job = {**JOB, **MUON, "checkpoint": {"folder": "checkpoints", "every_steps": 100}}
    (whole,) = run_ranks(run, 1, str(tmp_path / "whole"), {**JOB, **MUON}, -1)
    (first,) = run_ranks(run, 1, str(tmp_path / "stopped"), kept_job, 3)
    (second,) = run_ranks(run, 1, str(tmp_path / "stopped"), kept_job, -1)
    assert first["steps"] == 3
    assert second == {**whole, "resumed_at": 3}
    assert whole["loss"] < 5.4, "less than the entropy of 256 equal bytes"


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("blocks.0.attention.wq.weight", (4, 4), True),
        ("module.blocks.0.attention.wq.weight", (4, 4), True),
        ("blocks.0.attention_norm.weight", (4,), False),
        ("tok_embeddings.weight", (4, 4), False),
        ("output.weight", (4, 4), False),
    ],
)
def test_hidden_matrices_are_those_in_blocks(name: str, shape: tuple[int, ...], wanted: bool) -> None:
    assert is_hidden_matrix(name, nn.Parameter(torch.zeros(shape)), "blocks") is wanted


def test_a_closure_is_refused() -> None:
    matrix = nn.Parameter(torch.zeros(2, 2))
    optimiser = make_optimiser([matrix], OptimiserSection(name="muon"), [matrix])
    with pytest.raises(ValueError, match="a closure is not supported"):
        optimiser.step(lambda: 0.0)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"model": {"moe": {"experts": 4, "expert_dim": 32}}}, r'"muon" with \[model\.moe\]: experts are stacked'),
        ({"data_parallel": {"method": "zero3", "cpu_offload": True}}, "orthogonalised on the host"),
        ({"asynchrony": {"method": "hogwild"}}, r'"muon" is not available with \[asynchrony\]'),
        ({"model": {"kind": "tests.datacenter.train.test_evaluation:with_dropout"}}, "names no blocks"),
    ],
)
def test_where_it_would_be_wrong_it_is_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        check_layout(SiloJob.model_validate({**JOB, **MUON, **sections}), 1)


def test_the_planner_counts_one_state_less_for_matrices_of_blocks() -> None:
    bytes_kept = []
    for name in ("adamw", "muon"):
        job = SiloJob.model_validate(small(optimiser={"name": name}, data_parallel=method("zero3")))
        task, layout = Task.of(job), layout_of(job, 2)
        (share,) = shares(layout, job.model.layers)
        bytes_kept.append(kept(task, layout, share))
    matrices = 2 * (32 * 8 * (2 * 4 + 2 * 2) + 3 * 32 * 64)
    assert bytes_kept[0] - bytes_kept[1] == 4 * matrices / 2
