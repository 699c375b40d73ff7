"""Every layout gives the losses and parameters of one process (float32, ``training.STEPS`` of AdamW)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import assert_same, method, small_in_two, train


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    found: dict[str, Any] = run_ranks(train, 1, small_in_two(1))[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {}, id="ddp-2"),
        pytest.param(2, {"data_parallel": method("zero1")}, id="zero1-2"),
        pytest.param(2, {"data_parallel": method("zero2")}, id="zero2-2"),
        pytest.param(2, {"data_parallel": method("zero3")}, id="zero3-2"),
        pytest.param(2, {"data_parallel": {"method": "zero3", "cpu_offload": True}}, id="zero3-offload-2"),
        pytest.param(4, {"data_parallel": method("zero3"), "mesh": {"dp_replicate": 2}}, id="hybrid-2x2"),
        pytest.param(2, {"mesh": {"tp": 2}}, id="tp-2", marks=pytest.mark.every_layout),
        pytest.param(2, {"mesh": {"tp": 2}, "tensor_parallel": {"sequence": False, "loss": False}}, id="tp-2-plain"),
        pytest.param(4, {"mesh": {"tp": 2}}, id="ddp-2-tp-2", marks=pytest.mark.every_layout),
        pytest.param(4, {"mesh": {"tp": 2}, "data_parallel": method("zero3")}, id="zero3-2-tp-2"),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    found = run_ranks(train, ranks, small_in_two(ranks, **sections))
    assert len(found[0]["parameters"]) == len(alone["parameters"])
    for one in found:
        assert_same(one, alone)
