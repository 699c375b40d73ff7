"""Ranks that hold the same hidden states draw the same random numbers, and no others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world, randomness, seed_ranks
from atoll.datacenter.train.pulse import Unwatched
from atoll.datacenter.train.trainer import train
from tests.datacenter.marks import needs_torch_2_13
from tests.datacenter.ranks import run_ranks
from tests.patience import WAIT_S

EXAMPLES = Path(__file__).parents[3] / "examples" / "silo"
STEPS = 3
JOB: dict[str, Any] = {
    "job": {"name": "dropout", "steps": STEPS, "seed": 3},
    "model": {
        "kind": "tests.datacenter.mesh.dropout_model:spec",
        "settings": {"vocab": 256, "dim": 32, "hidden": 64, "layers": 2},
    },
    "batch": {"sequence": 16, "global_batch": 4, "micro_batch": 2},
    "optimiser": {"lr": 1e-2},
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def seeds() -> tuple[int, list[tuple[int, int]]]:
    """Return the seed of this rank, and those that DTensor's tracker gets on a GPU, with the ranks that share them."""
    meshes = Meshes.build(ParallelDims(pp=2, dp_shard=2, tp=2), "cpu")
    seed_ranks(7, meshes)
    own, tracked = torch.initial_seed(), list[tuple[int, int]]()
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(randomness, "manual_seed", lambda seed, mesh: tracked.append((seed, mesh.size()))),
    ):
        seed_ranks(7, meshes)
    return own, tracked


def test_the_ranks_of_a_tp_group_share_a_seed_and_others_have_their_own() -> None:
    """On GPUs DTensor's tracker gets the same seed: left alone it would take rank 0's state everywhere."""
    assert run_ranks(seeds, 8) == [(seed, [(seed, 2)]) for seed in (7, 7, 8, 8, 9, 9, 10, 10)]


def trained(folder: str, sections: dict[str, Any]) -> float | None:
    with join_world(WAIT_S) as world:
        job = SiloJob.model_validate({**JOB, **sections})
        return train(job, Path(folder), world, Unwatched(), console=False).loss


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(
            2, {"mesh": {"tp": 2}, "tensor_parallel": {"sequence": False}}, id="tp-2", marks=pytest.mark.every_layout
        ),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2-sequence", marks=needs_torch_2_13),
        pytest.param(
            4,
            {"mesh": {"dp_replicate": 2, "dp_shard": 1, "tp": 2}, "tensor_parallel": {"sequence": False}},
            id="ddp-2-tp-2",
        ),
    ],
)
def test_copies_stay_equal_under_dropout(ranks: int, sections: dict[str, Any], tmp_path: Path) -> None:
    """``check_replicas_every`` compares every copy after each step, and fails otherwise."""
    method = {"method": "ddp", "check_replicas_every": 1}
    losses = run_ranks(trained, ranks, str(tmp_path), {**sections, "data_parallel": method})
    assert losses[0] is not None
    assert len(set(losses)) == 1
