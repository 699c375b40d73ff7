from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from atoll.simulation.cluster.tree import ARITY, children


def depth(root: int, below: Mapping[int, Sequence[int]]) -> int:
    return 1 + max((depth(one, below) for one in below[root]), default=0)


def reached(root: int, below: Mapping[int, Sequence[int]]) -> list[int]:
    return [root, *(found for one in below[root] for found in reached(one, below))]


@pytest.mark.parametrize(("workers", "nodes"), [(1, 1), (2, 2), (7, 1), (64, 8), (100, 100), (97, 3)])
def test_every_sum_is_added_once_and_few_at_a_time(workers: int, nodes: int) -> None:
    root, below = children(range(workers), lambda one: str(one % nodes), "0")
    assert sorted(reached(root, below)) == list(range(workers))
    assert all(len(added) <= 2 * ARITY for added in below.values())
    assert depth(root, below) <= 8


def test_sums_of_a_machine_are_added_there_and_the_whole_where_it_is_needed() -> None:
    root, below = children(range(12), lambda one: str(one % 3), "2")
    assert root % 3 == 2
    between = [(one, other) for one, added in below.items() for other in added if one % 3 != other % 3]
    assert len(between) == 2
