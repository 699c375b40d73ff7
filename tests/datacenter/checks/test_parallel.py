"""Cuts of sequences and experts that do not fit are refused with the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from tests.datacenter.training import small

MOE = {"experts": 4, "expert_dim": 30}
RING = {"method": "ring"}
ZERO = {"method": "zero3"}


def check(ranks: int, **sections: dict[str, Any]) -> tuple[str, ...]:
    try:
        check_layout(SiloJob.model_validate(small(**sections)), ranks)
    except LayoutError as error:
        return error.problems
    return ()


@pytest.mark.parametrize(
    ("ranks", "sections", "says"),
    [
        (
            2,
            {"mesh": {"cp": 2}, "batch": {"sequence": 15}},
            "= 15 cannot be cut into mesh.cp = 2 pieces: set 16",
        ),
        (
            2,
            {"mesh": {"cp": 2}, "batch": {"sequence": 18}, "context_parallel": RING},
            "batch.sequence = 18 cannot be cut into 2 * mesh.cp = 4 pieces (ring: two for each rank): set 20",
        ),
        (
            4,
            {"mesh": {"cp": 4}},
            "model.kv_heads = 2 cannot be divided among mesh.cp 4 * mesh.tp 1 = 4 ranks: set context_parallel.method",
        ),
        (2, {"mesh": {"ep": 2}, "data_parallel": ZERO}, "mesh.ep = 2, but the job has no [model.moe]"),
        (2, {"mesh": {"ep": 2}, "model": {"moe": MOE}}, 'data_parallel.method = "ddp" keeps whole replicas'),
        (
            3,
            {"mesh": {"ep": 3}, "model": {"moe": MOE}, "data_parallel": ZERO, "batch": {"global_batch": 6}},
            "mesh.ep = 3 does not divide model.moe.experts = 4",
        ),
        (
            6,
            {"mesh": {"ep": 2}, "model": {"moe": MOE}, "data_parallel": ZERO, "batch": {"global_batch": 12}},
            "sharded along model.dim = 32, which dp_shard 6 * cp 1 / ep 2 = 3 ranks do not divide",
        ),
        (
            4,
            {"mesh": {"tp": 4}, "model": {"moe": MOE, "kv_heads": 4}},
            "mesh.tp = 4 does not divide model.moe.expert_dim = 30",
        ),
        (
            2,
            {"mesh": {"cp": 2}, "model": {"moe": {**MOE, "capacity_factor": 1.0, "padded": True}}},
            "model.moe.padded = true with mesh.cp = 2: each rank would send the capacity of whole sequences",
        ),
    ],
)
def test_refused_with_the_numbers(ranks: int, sections: dict[str, Any], says: str) -> None:
    found = check(ranks, **sections)
    assert len(found) == 1, found
    assert says in found[0]


def test_what_fits_passes() -> None:
    assert not check(4, mesh={"cp": 4}, context_parallel=RING)
    assert not check(4, mesh={"ep": 2, "cp": 2}, model={"moe": MOE}, data_parallel=ZERO)


@pytest.mark.parametrize(("able", "count"), [(True, 0), (False, 1)])
def test_experts_recomputed_selectively_need_a_newer_torch(
    able: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.datacenter.checks.parallel.SHARDS_BY_PARAMETER", able)
    selective = {"checkpointing": "selective"}
    found = check(2, mesh={"ep": 2}, model={"moe": MOE}, data_parallel=ZERO, memory=selective)
    assert len(found) == count
    assert all('"selective" with experts distributed by mesh.ep = 2 needs torch 2.13' in one for one in found)


@pytest.mark.parametrize(("able", "count"), [(True, 0), (False, 1)])
def test_a_compiled_ring_needs_a_newer_torch(able: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.datacenter.checks.parallel.COMPILES_RING", able)
    found = check(4, mesh={"cp": 4}, context_parallel=RING, memory={"compile": True})
    assert len(found) == count
    assert all("needs torch 2.13" in one for one in found)
