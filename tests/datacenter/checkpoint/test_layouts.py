"""A checkpoint of one layout continues in another, with optimiser states, as if the job had not stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.datacenter.checkpoint.going_on import go_on, sections_of
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small, small_in_two, train

TOLERANCE = 2e-6
Stages = list[tuple[int, dict[str, Any]]]
UNEVEN: Stages = [(3, {"data_parallel": {"method": "zero3"}, "batch": {"micro_batch": 4}})]
CUT: Stages = [(2, {"mesh": {"tp": 2}, "batch": {"micro_batch": 4}})]
STAGES: Stages = [
    (2, {"mesh": {"pp": 2}}),
    (2, {"data_parallel": {"method": "ddp"}}),
    (4, {"mesh": {"tp": 2}, "data_parallel": {"method": "zero3"}}),
    (1, {}),
]


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param(UNEVEN + STAGES, id="short"),
        pytest.param(UNEVEN + CUT + STAGES, id="long", marks=pytest.mark.every_layout),
    ],
)
def test_each_layout_goes_on_where_the_one_before_stopped(tmp_path: Path, stages: Stages) -> None:
    """ZeRO-3 over 3 (uneven shards) → (TP 2) → two pipeline stages → DDP 2 → ZeRO-3 x TP → one process."""
    alone = run_ranks(train, 1, small_in_two(1), len(stages))[0]
    found: list[dict[str, Any]] = []
    for number, (ranks, layout) in enumerate(stages):
        begun, last = number, number + 1
        found = run_ranks(go_on, ranks, sections_of(1, **layout), str(tmp_path), last)
        for one in found:
            assert one["resumed"] == (begun or -1)
            torch.testing.assert_close(one["losses"], alone["losses"][begun:last], rtol=0, atol=TOLERANCE)
    for name, value in alone["parameters"].items():
        assert (found[0]["parameters"][f"model.{name}"] - value).abs().max().item() <= TOLERANCE, name


def test_the_same_layout_takes_over_what_each_rank_has_for_itself(tmp_path: Path) -> None:
    """In another layout, random generators and residuals of compression start from the beginning."""
    first = run_ranks(go_on, 2, sections_of(), str(tmp_path), 2)
    again = run_ranks(go_on, 2, sections_of(), str(tmp_path), 2)
    for rank, (one, other) in enumerate(zip(first, again, strict=True)):
        assert other["resumed"] == 2
        assert other["leftover"].tolist() == [float(rank)] * 3
        assert one["random"].tolist() == other["random"].tolist()


def test_experts_and_the_biases_that_balance_them_go_on_in_one_process(tmp_path: Path) -> None:
    """Expert parallelism over two ranks, each with its own experts → one process."""
    moe = {"experts": 4, "top_k": 2, "expert_dim": 32, "balance": "bias"}
    model = {"moe": moe, "layers": 2}
    (alone,) = run_ranks(train, 1, small(model=model), 4)
    over_two = sections_of(model=model, mesh={"ep": 2}, data_parallel={"method": "zero3"})
    run_ranks(go_on, 2, over_two, str(tmp_path), 2)
    (found,) = run_ranks(go_on, 1, sections_of(model=model), str(tmp_path), 4)
    assert found["resumed"] == 2
    torch.testing.assert_close(found["losses"], alone["losses"][2:], rtol=0, atol=TOLERANCE)
    biases = [value for name, value in found["parameters"].items() if name.endswith(".bias")]
    assert len(biases) == 2
    assert all(bias.any() for bias in biases)
