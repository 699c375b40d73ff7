"""The cost models, against figures computed by hand and against the bus bandwidth factors of NCCL's tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.datacenter.machine import DATA_SHEETS, Algorithm, Collective, Group, Link, MachineRates, cost, predict
from atoll.datacenter.machine.cost import COLLECTIVES, LIBRARY, MODELS, CostError, levels, link_of

H100 = DATA_SHEETS["h100"]
UNIT = H100.model_copy(
    update={"intra": Link(alpha_s=1.0, bytes_per_s=1.0), "inter": Link(alpha_s=100.0, bytes_per_s=0.01)}
)
"""A machine where a message costs 1 s and each byte 1 s, and a hundred times that between nodes."""


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks", "seconds"),
    [
        ("all_reduce", "ring", 4, 6 + 2 * 0.75 * 80),
        ("all_reduce", "tree", 4, 2 * (1 + 80)),
        ("all_reduce", "double_tree", 4, 4 + 2 * 80),
        ("all_gather", "ring", 8, 7 + 70),
        ("all_gather", "tree", 8, 3 + 70),
        ("reduce_scatter", "ring", 8, 7 + 70),
        ("reduce_scatter", "tree", 5, 3 + 64),
        ("broadcast", "ring", 8, 7 + 80),
        ("broadcast", "tree", 8, 3 * 81),
        ("broadcast", "double_tree", 8, 3 + 80),
        ("reduce", "ring", 2, 1 + 80),
        ("reduce", "tree", 5, 3 * 81),
        ("reduce", "double_tree", 16, 4 + 80),
        ("all_to_all", "pairwise", 8, 7 + 70),
        ("all_to_all", "tree", 8, 3 * (1 + 40)),
    ],
)
def test_costs_are_those_of_the_papers(
    collective: Collective, algorithm: Algorithm, ranks: int, seconds: float
) -> None:
    assert cost(collective, algorithm, 80.0, Group(ranks), UNIT).seconds == pytest.approx(seconds)


def test_every_model_is_in_the_table_above() -> None:
    mark = next(mark for mark in test_costs_are_those_of_the_papers.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]  # pytest adds it
    assert {row[:2] for row in mark.args[1]} == set(MODELS)


def test_sent_bytes_are_the_bus_bandwidth_factors_of_nccls_tests() -> None:
    """nccl-tests, doc/PERFORMANCE.md: 2(n-1)/n, (n-1)/n, (n-1)/n, 1, 1; all-to-all (n-1)/n."""
    factors = {"all_reduce": 14 / 8, "broadcast": 1.0, "reduce": 1.0}
    for collective in COLLECTIVES:
        found = cost(collective, LIBRARY[collective][0], 1e9, Group(8), H100)
        assert found.sent_bytes == pytest.approx(factors.get(collective, 7 / 8) * 1e9)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_alone_costs_nothing(collective: Collective) -> None:
    found = predict(collective, 1e9, Group(1), H100)
    assert (found.seconds, found.sent_bytes, found.inter_bytes) == (0.0, 0.0, 0.0)


def test_the_library_takes_trees_for_small_buffers_on_many_nodes_and_rings_for_large_ones() -> None:
    assert predict("all_reduce", 1e6, Group(1024, 128), H100).algorithm == "double_tree"
    assert predict("all_reduce", 1e9, Group(16, 2), H100).algorithm == "ring"


def test_a_ring_across_nodes_uses_every_ranks_share_of_the_network() -> None:
    """Eight shares of 50 GB/s are 400 GB/s, just below NVLink's 450; one rank to a node has its own share alone."""
    assert link_of("ring", Group(16, 2), H100).bytes_per_s == pytest.approx(400e9)
    assert link_of("ring", Group(4, 2), H100).bytes_per_s == pytest.approx(100e9)
    assert link_of("ring", Group(2, 2), H100).bytes_per_s == pytest.approx(50e9)
    wide = H100.model_copy(update={"inter": H100.intra})
    assert link_of("ring", Group(16, 2), wide).bytes_per_s == pytest.approx(450e9)


def test_startup_times_are_means_over_the_hops() -> None:
    assert link_of("ring", Group(8, 2), UNIT).alpha_s == pytest.approx((6 * 1 + 2 * 100) / 8)
    assert link_of("double_tree", Group(8, 2), UNIT).alpha_s == pytest.approx((2 * 1 + 1 * 100) / 3)
    assert link_of("tree", Group(2, 2), UNIT).alpha_s == pytest.approx(100)


def test_what_crosses_the_network_is_counted() -> None:
    ring = cost("all_gather", "ring", 800.0, Group(8, 2), UNIT)
    assert (ring.sent_bytes, ring.inter_bytes) == pytest.approx((700.0, 175.0))
    pairwise = cost("all_to_all", "pairwise", 800.0, Group(8, 2), UNIT)
    assert (pairwise.sent_bytes, pairwise.inter_bytes) == pytest.approx((700.0, 400.0))
    assert pairwise.seconds == pytest.approx(3 * (1 + 100) + 4 * (100 + 10_000))


def test_what_cannot_be_is_refused_with_the_numbers() -> None:
    with pytest.raises(CostError, match="10 ranks cannot be divided evenly among 4 nodes"):
        Group(10, 4)
    with pytest.raises(CostError, match="all_gather by double_tree: no such cost model; there are ring, tree"):
        cost("all_gather", "double_tree", 1.0, Group(2), H100)


def test_levels() -> None:
    assert [levels(ranks) for ranks in (1, 2, 3, 4, 5, 8, 9, 1024)] == [0, 1, 2, 2, 3, 3, 4, 10]


def test_values_are_frozen() -> None:
    group = Group(4)
    assert replace(group, nodes=2).ranks_per_node == 2
    assert isinstance(hash(H100), int)
    assert isinstance(H100, MachineRates)
