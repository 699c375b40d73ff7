"""A draw exceeds a round's capacity with probability below 2**-64, and the bound is nearly tight."""

from __future__ import annotations

import pytest
from scipy import stats

from atoll.server.privacy.capacity import most_eligible, most_members, rotated


@pytest.mark.parametrize("size", [1, 2, 4, 5, 10, 100, 1000])
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3, 1.0])
def test_hardly_ever_are_more_drawn_than_there_is_room_for(size: int, rate: float) -> None:
    eligible, most = most_eligible(size, rate), most_members(size)
    assert stats.binom.sf(most, eligible, rate) < 2.0**-64
    assert eligible >= min(3 * size / rate, most_members(size)), "three times the plan are always in the draw"


def test_the_bound_wastes_little() -> None:
    assert stats.binom.sf(1600, int(1.05 * most_eligible(100, 0.01)), 0.01) > 2.0**-64


def test_all_get_their_turn() -> None:
    names = [f"p{number}" for number in range(20)]
    turns = [rotated(names, 5, number) for number in range(40)]
    assert all(len(chosen) == 5 for chosen in turns)
    assert set().union(*turns) == set(names)
    assert rotated(reversed(names), 5, 7) == turns[7], "for any order of connection"
    assert rotated(names, 30, 0) == set(names)
