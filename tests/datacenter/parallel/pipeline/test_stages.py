"""Every schedule gives the losses and parameters of one process (float32, ten AdamW steps)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.datacenter.parallel.test_layouts import assert_same
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small, train


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    found: dict[str, Any] = run_ranks(train, 1, small(batch={"micro_batch": 1}))[0]
    return found


def pipe(schedule: str, per_rank: int = 1) -> dict[str, Any]:
    return {"schedule": schedule, "stages_per_rank": per_rank}


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"pipeline": pipe("gpipe")}, id="gpipe-2"),
        pytest.param(2, {"pipeline": pipe("1f1b")}, id="1f1b-2"),
        pytest.param(2, {"pipeline": pipe("interleaved", 2)}, id="interleaved-2"),
        pytest.param(2, {"pipeline": pipe("looped_bfs", 2)}, id="looped-2"),
        pytest.param(2, {"pipeline": pipe("interleaved_zero_bubble", 2)}, id="izb-2"),
        pytest.param(2, {"pipeline": pipe("zbv")}, id="zbv-2"),
        pytest.param(2, {"pipeline": pipe("dualpipev")}, id="dualpipev-2"),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any], alone: dict[str, Any]) -> None:
    found = run_ranks(train, ranks, small(mesh={"pp": 2}, batch={"micro_batch": 1}, **sections))
    names = [name for one in found for name in one["parameters"]]
    assert sorted(names) == sorted(alone["parameters"])
    for one in found:
        assert_same(one, alone)
