"""The roster behaves as a dictionary of members that counts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.rounds import (
    Accepted,
    CohortDrawn,
    Member,
    MemberStatus,
    Phase,
    Reported,
    Roster,
    RoundKey,
    RoundPrepared,
    RunPolicy,
    Started,
    StragglerPolicy,
    UpdateRef,
    initial,
    step,
)
from tests.server.rounds.scenario import GRID

pytestmark = pytest.mark.slow

STATUSES = st.sampled_from(list(MemberStatus))


@given(st.integers(0, 600), st.lists(st.tuples(st.integers(0, 599), STATUSES), max_size=60))
def test_puts_are_those_of_a_dictionary(size: int, changes: list[tuple[int, MemberStatus]]) -> None:
    names = [f"p{i * 7919 % 10007}" for i in range(size)]
    model = {name: Member(name, 1) for name in names}
    roster = Roster.of(model.values())
    for i, status in changes:
        if i < size:
            model[names[i]] = Member(names[i], 1, status)
            roster = roster.put(model[names[i]])
    assert list(roster) == [model[name] for name in sorted(model)]
    assert roster == Roster.of(model.values())
    assert len(roster) == size
    assert all(roster.get(name) == member for name, member in model.items())


@pytest.mark.parametrize("name", ["", "p0", "p1x", "p99"])
def test_a_stranger_is_not_found_and_not_put(name: str) -> None:
    roster = Roster.of([Member("p1", 1), Member("p2", 1)])
    assert roster.get(name) is None
    assert Roster().get(name) is None
    with pytest.raises(KeyError):
        roster.put(Member(name, 1))


def test_an_event_costs_about_as_much_in_a_round_of_ten_thousand_members_as_in_one_of_a_thousand() -> None:
    """A guard against quadratic cost, which would be ten times as much. Best of three, in processor time."""
    small, large = (min(_seconds_per_member(size) for _ in range(3)) for size in (1_000, 10_000))
    assert large < 5 * small


def _seconds_per_member(size: int) -> float:
    key, names = RoundKey(0, 0), [f"p{i:05}" for i in range(size)]
    state = step(initial("r", RunPolicy(1, StragglerPolicy(len(names))), "m"), Started(), 0.0).state
    state = step(state, CohortDrawn(key, tuple((p, 1) for p in names), len(names), "uniform", 0), 0.0).state
    state = step(state, RoundPrepared(key, 1.0, 1.0, GRID), 0.0).state
    began = time.process_time()
    for name in names:
        state = step(state, Accepted(key, name), 0.0).state
        state = step(state, Reported(key, name, UpdateRef(key, name, "d", 1, "n"), 1), 0.0).state
    spent_s = time.process_time() - began
    assert state.round is not None
    assert state.round.phase is Phase.CLOSING
    return spent_s / size


@given(st.lists(st.tuples(st.integers(0, 399), st.sampled_from(MemberStatus)), max_size=20))
def test_what_changed_between_two_states_of_a_round_is_found(changes: list[tuple[int, MemberStatus]]) -> None:
    before = now = Roster.of(Member(f"p{number:03}", 1) for number in range(400))
    for number, status in changes:
        now = now.put(Member(f"p{number:03}", 1, status))
    assert now.changed_since(before) == {f"p{number:03}" for number, _ in changes}


def test_between_rosters_of_two_rounds_all_members_have_changed() -> None:
    one, other = Roster.of([Member("p1", 1), Member("p2", 1)]), Roster.of([Member("p2", 1)])
    assert one.changed_since(other) == other.changed_since(one) == {"p1", "p2"}
    assert one.changed_since(Roster()) == Roster().changed_since(one) == {"p1", "p2"}


def test_outstanding_members_of_a_roster_or_of_some_names() -> None:
    roster = Roster.of(
        [Member("p1", 1), Member("p2", 1, MemberStatus.REPORTED), Member("p3", 1, MemberStatus.TRAINING)]
    )
    assert list(roster.outstanding_among()) == ["p1", "p3"]
    assert list(roster.outstanding_among(["p2", "p3", "p4"])) == ["p3"]
