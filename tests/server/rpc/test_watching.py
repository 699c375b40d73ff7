"""The work and the messages for a watcher of a large round."""

from dataclasses import replace

from atoll.server.rounds import (
    Accepted,
    CohortDrawn,
    RoundKey,
    RoundPrepared,
    RunPolicy,
    RunState,
    Started,
    StragglerPolicy,
    initial,
    step,
)
from atoll.server.rpc import views
from atoll.server.rpc.watching import PAGE_MEMBERS, LiveRound, ShownMembers
from tests.server.rounds.scenario import GRID

COHORT = 10_000
KEY = RoundKey(0, 0)


def opened(members: int) -> RunState:
    names = tuple((f"p{number:05}", 1) for number in range(members))
    state = step(initial("r", RunPolicy(1, StragglerPolicy(members)), "m"), Started(), 0.0).state
    state = step(state, CohortDrawn(KEY, names, members, "uniform", 0), 0.0).state
    return step(state, RoundPrepared(KEY, 1.0, 1.0, GRID), 0.0).state


def seen(state: RunState) -> LiveRound:
    assert state.round is not None
    return LiveRound(state, state.round, {}, views.RoundNumbering(), 1.0)


def test_a_watcher_is_told_all_members_once_in_pages_and_then_those_that_changed() -> None:
    state, shown = opened(COHORT), ShownMembers()
    pages = list(shown.pages(seen(state)))
    assert {len(page.members) for page in pages} == {PAGE_MEMBERS}
    assert len({member.participant for page in pages for member in page.members}) == COHORT
    for number in range(20):
        state = step(state, Accepted(KEY, f"p{number:05}"), 0.0).state
        (page,) = shown.pages(seen(state))
        assert [(member.participant, member.status) for member in page.members] == [(f"p{number:05}", "training")]
        assert page.ByteSize() < 1000
    (page,) = shown.pages(seen(state))
    assert not page.members


def test_a_new_attempt_is_told_whole() -> None:
    shown = ShownMembers()
    list(shown.pages(seen(opened(3))))
    again = seen(opened(3))
    (page,) = shown.pages(replace(again, live=replace(again.live, key=RoundKey(0, 1))))
    assert len(page.members) == 3
