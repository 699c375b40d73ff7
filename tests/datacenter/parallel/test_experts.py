"""Every layout of a model with experts gives the losses and parameters of one process (float32, ten AdamW steps)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.datacenter.parallel.test_layouts import assert_same, method
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small, train

MOE = {"experts": 4, "top_k": 2, "expert_dim": 32, "shared_experts": 1, "capacity_factor": 1.0, "loss_weight": 0.05}


def job(**sections: dict[str, Any]) -> dict[str, Any]:
    return small(**{**sections, "model": {"moe": MOE, "layers": 2, **sections.get("model", {})}})


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    found: dict[str, Any] = run_ranks(train, 1, job())[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {}, id="ddp-2"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2"),
        pytest.param(2, {"mesh": {"ep": 2}, "data_parallel": method("zero3")}, id="ep-2"),
        pytest.param(4, {"mesh": {"ep": 4}, "data_parallel": method("zero2")}, id="ep-4"),
        pytest.param(4, {"mesh": {"ep": 2}, "data_parallel": method("zero3")}, id="ep-2-efsdp-2"),
        pytest.param(4, {"mesh": {"ep": 2, "dp_replicate": 2}, "data_parallel": method("zero3")}, id="hybrid-2-ep-2"),
        pytest.param(4, {"mesh": {"ep": 2, "tp": 2}, "data_parallel": method("zero3")}, id="ep-2-tp-2"),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    found = run_ranks(train, ranks, job(**sections))
    assert len(found[0]["parameters"]) == len(alone["parameters"])
    for one in found:
        assert_same(one, alone)
