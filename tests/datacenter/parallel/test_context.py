"""Sequences cut over ranks give the losses and parameters of one process (float32, ten AdamW steps)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.datacenter.parallel.test_layouts import assert_same, method
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small, train

RING = {"context_parallel": {"method": "ring"}}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    found: dict[str, Any] = run_ranks(train, 1, small())[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"mesh": {"cp": 2}}, id="ulysses-2"),
        pytest.param(2, {"mesh": {"cp": 2}, **RING}, id="ring-2"),
        pytest.param(4, {"mesh": {"cp": 4}, "data_parallel": method("zero3"), **RING}, id="ring-4-zero3"),
        pytest.param(4, {"mesh": {"cp": 2}, "data_parallel": method("zero3")}, id="ulysses-2-zero3"),
        pytest.param(4, {"mesh": {"cp": 2, "tp": 2}, **RING}, id="ring-2-tp-2"),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    found = run_ranks(train, ranks, small(**sections))
    assert len(found[0]["parameters"]) == len(alone["parameters"])
    for one in found:
        assert_same(one, alone)
