"""A checkpoint of one layout goes on in another, optimiser states and all, as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.datacenter.checkpoint.going_on import go_on, sections_of
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import small, train

TOLERANCE = 2e-6
STAGES: list[tuple[int, dict[str, Any]]] = [
    (4, {"data_parallel": {"method": "zero3"}}),
    (2, {"mesh": {"tp": 2}}),
    (2, {"data_parallel": {"method": "ddp"}}),
    (4, {"mesh": {"tp": 2}, "data_parallel": {"method": "zero3"}}),
    (3, {"data_parallel": {"method": "zero2"}, "batch": {"micro_batch": 4}}),
    (1, {}),
]


def test_each_layout_goes_on_where_the_one_before_stopped(tmp_path: Path) -> None:
    """ZeRO-3 over 4 → TP 2 → DDP 2 → ZeRO-3 x TP → ZeRO-2 over 3 (uneven shards) → one process."""
    alone = run_ranks(train, 1, small(), 2 * len(STAGES))[0]
    for number, (ranks, layout) in enumerate(STAGES):
        begun, last = 2 * number, 2 * (number + 1)
        found = run_ranks(go_on, ranks, sections_of(**layout), str(tmp_path), last)
        for one in found:
            assert one["resumed"] == (begun or -1)
            torch.testing.assert_close(one["losses"], alone["losses"][begun:last], rtol=0, atol=TOLERANCE)
            for name, value in alone["parameters"].items() if last == 2 * len(STAGES) else ():
                assert (one["parameters"][f"model.{name}"] - value).abs().max().item() <= TOLERANCE, name


def test_the_same_layout_takes_over_what_each_rank_has_for_itself(tmp_path: Path) -> None:
    """Random generators and the leftovers of compression, which another layout begins anew."""
    first = run_ranks(go_on, 2, sections_of(), str(tmp_path), 2)
    again = run_ranks(go_on, 2, sections_of(), str(tmp_path), 2)
    for rank, (one, other) in enumerate(zip(first, again, strict=True)):
        assert other["resumed"] == 2
        assert other["leftover"].tolist() == [float(rank)] * 3
        assert one["random"].tolist() == other["random"].tolist()
