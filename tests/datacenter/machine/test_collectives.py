"""Every collective on gloo, and links fitted to times computed by the cost models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.machine.collectives import FITTED, Point, fit_link, measure_collective, sizes
from atoll.datacenter.machine.cost import COLLECTIVES, MODELS, Collective
from atoll.datacenter.machine.rates import Link
from atoll.datacenter.machine.timing import Timing
from tests.datacenter.ranks import run_ranks

LINK = Link(alpha_s=5e-6, bytes_per_s=20e9)


def made(collective: Collective, size: int, ranks: int, link: Link = LINK, factor: float = 1.0) -> Point:
    """A point that takes as long as the ring (or pairwise) model says, times a factor."""
    terms = MODELS[collective, "pairwise" if collective == "all_to_all" else "ring"]
    seconds = terms.steps(ranks) * link.alpha_s + terms.volume(ranks) * size / link.bytes_per_s
    return Point(collective, size, ranks, Timing(seconds * factor, 0.0, 1))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_link_is_found_again(ranks: int) -> None:
    points = [made(collective, size, ranks) for collective, _ in FITTED for size in sizes(1 << 26)]
    found = fit_link(points)
    assert found is not None
    assert found.alpha_s == pytest.approx(LINK.alpha_s)
    assert found.bytes_per_s == pytest.approx(LINK.bytes_per_s)


def test_constants_are_not_negative() -> None:
    """Times that fall with the size would ask for a negative beta."""
    falling = [made("all_reduce", size, 4, factor=1e6 / size**1.5) for size in sizes(1 << 20)]
    found = fit_link(falling)
    assert found is not None
    assert found.alpha_s > 0
    assert found.bytes_per_s > 1e12
    convex = [Point("all_reduce", size, 4, Timing(1e-18 * size**2, 0.0, 1)) for size in sizes(1 << 20)]
    steep = fit_link(convex)
    assert steep is not None
    assert steep.alpha_s == 0.0


def test_one_rank_has_no_link() -> None:
    assert fit_link([made("all_reduce", size, 1) for size in (1024, 4096)]) is None
    assert fit_link([made("all_reduce", 1024, 4)]) is None


def test_bus_bandwidth_is_that_of_the_link_where_startup_is_nothing() -> None:
    link = Link(alpha_s=0.0, bytes_per_s=1e9)
    for collective in COLLECTIVES:
        assert made(collective, 1 << 20, 4, link).bus_bytes_per_s == pytest.approx(1e9)


def measure_each() -> list[Any]:
    cpu = torch.device("cpu")
    found = [measure_collective(collective, 1000, cpu) for collective in COLLECTIVES]
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    assert isinstance(alone, dist.ProcessGroup)
    found.append(measure_collective("broadcast", 1000, cpu, alone))
    return [[point.collective, point.size_bytes, point.ranks, point.timing.seconds] for point in found]


def test_every_collective_is_measured_and_ranks_agree_on_the_slowest() -> None:
    first, *others = run_ranks(measure_each, 3)
    assert [row[:3] for row in first] == [*([name, 1008, 3] for name in COLLECTIVES), ["broadcast", 1000, 1]]
    assert all(row[3] > 0 for row in first)
    assert all(other == first for other in others)
