"""Shares by speed, and a gradient that does not depend on them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import Meshes, ParallelDims, join_world
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.passes import PlainPasses
from atoll.datacenter.parallel.uneven import Balance, Stopwatch, shares
from atoll.datacenter.train.build import make_step
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import STEPS, examples, named_whole, small, train
from tests.patience import WAIT_S

SPEEDS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12)


@settings(deadline=None)
@given(SPEEDS, st.integers(0, 500))
def test_shares_add_up_and_each_rank_has_one(speeds: list[float], more: int) -> None:
    dealt = shares(len(speeds) + more, speeds)
    assert sum(dealt) == len(speeds) + more
    assert min(dealt) >= 1


@settings(deadline=None)
@given(SPEEDS, st.integers(0, 500))
def test_the_faster_gets_no_less(speeds: list[float], more: int) -> None:
    dealt = shares(len(speeds) + more, speeds)
    ordered = [one for _, one in sorted(zip(speeds, dealt, strict=True))]
    for slower, faster in pairwise(ordered):
        assert faster >= slower - 1  # of equals, the one of lower rank may get one more


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 5))
def test_proportions_that_come_out_even_are_met(speeds: list[int], times: int) -> None:
    assert shares(sum(speeds) * times, speeds) == tuple(speed * times for speed in speeds)


def test_too_few_sequences_and_speeds_that_are_none_are_refused() -> None:
    for total, speeds in ((1, [1.0, 1.0]), (4, [1.0, 0.0]), (4, [1.0, float("inf")])):
        with pytest.raises(ValueError, match=f"{total} sequences"):
            shares(total, speeds)


class Ticks:
    """A clock that advances by this much at each reading."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def trained_unevenly() -> dict[str, Any]:
    """The small job; rank 1's forward passes take three times as long as the others'."""
    job = SiloJob.model_validate(small(data_parallel={"uneven": True}, batch={"global_batch": 8, "micro_batch": 1}))
    with join_world(WAIT_S) as world:
        meshes = Meshes.build(ParallelDims.of(job.mesh, world.size), world.device.type)
        step = make_step(job, spec_of(job.model), meshes, world.device)
        assert isinstance(step.passes, PlainPasses)
        step.passes.watch = Stopwatch(world.device, Ticks(3.0 if world.rank == 1 else 1.0))
        balance = Balance(8, meshes.loss.get_group(), step.passes.watch, every_steps=2)
        losses, counts = [], []
        for number in range(STEPS):
            counts.append(balance.counts)
            begin = sum(balance.counts[: world.rank])
            mine = slice(begin, begin + balance.counts[world.rank])
            losses.append(step(number, examples(job, number, mine)).loss)
            balance.after_step(world.device)
        return {"losses": losses, "counts": counts, "parameters": named_whole(step.passes.parts)}


def test_a_slow_rank_gets_less_and_the_result_is_that_of_one_process() -> None:
    alone = run_ranks(train, 1, small())[0]
    found = run_ranks(trained_unevenly, 2)
    assert found[0]["counts"] == found[1]["counts"]
    assert found[0]["counts"][:3] == [(4, 4), (4, 4), (6, 2)]
    assert found[0]["counts"][-1] == (6, 2)
    for one in found:
        torch.testing.assert_close(one["losses"], alone["losses"], rtol=0, atol=2e-6)
        for name, value in one["parameters"].items():
            torch.testing.assert_close(value, alone["parameters"][name], rtol=0, atol=2e-6)


def silent() -> list[tuple[int, ...] | None]:
    """No rank has measured anything; then only rank 0 has."""
    group = dist.group.WORLD
    assert group is not None
    watch = Stopwatch(torch.device("cpu"), Ticks(2.0))
    balance = Balance(10, group, watch, every_steps=1)
    found = [balance.after_step(torch.device("cpu"))]
    with watch.running():
        pass
    found.append(balance.after_step(torch.device("cpu")))
    return found


def test_speeds_that_are_not_known_change_nothing() -> None:
    assert run_ranks(silent, 2) == [[None, None]] * 2
