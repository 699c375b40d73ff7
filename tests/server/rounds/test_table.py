"""The engine makes no transition that is not in the table."""

import itertools
from dataclasses import replace

import pytest

from atoll.server.rounds import (
    IGNORED,
    TABLE,
    Accepted,
    Aggregated,
    BudgetSpent,
    CancelRequested,
    Charged,
    CohortDrawn,
    DeadlinePassed,
    Declined,
    EffectFailed,
    Event,
    ExtendRequested,
    IllegalTransition,
    MemberFailed,
    Move,
    PauseRequested,
    Published,
    Rejected,
    Reported,
    ResumeRequested,
    RetryDue,
    RoundError,
    RoundKey,
    RoundPrepared,
    RunState,
    Situation,
    Started,
    SumLost,
    WentSilent,
    step,
)
from atoll.server.rounds.engine import row_of
from tests.server.rounds.scenario import Story


def events_of(key: RoundKey) -> tuple[Event, ...]:
    """One of each event."""
    return (
        Started(),
        CohortDrawn(key, (("pa", 1),), 1, "uniform", 0),
        RoundPrepared(key, 1.0, 1.0),
        Accepted(key, "pa"),
        Declined(key, "pa", "no"),
        MemberFailed(key, "pa", "no"),
        WentSilent(key, "pa", "no"),
        Reported(key, "pa", None, 1),
        Rejected(key, "pa", "no"),
        DeadlinePassed(key),
        Aggregated(key, 1, 1, "m"),
        Charged(key),
        Published(key),
        RetryDue(key),
        PauseRequested(),
        ResumeRequested(),
        CancelRequested("no"),
        ExtendRequested(1),
        EffectFailed(key, "Publish", "no"),
        BudgetSpent(key, "no"),
        SumLost(key, "no", ()),
    )


def states() -> dict[Situation, RunState]:
    """A run in every situation that it can rest in."""
    first = RoundKey(0, 0)
    return {
        Situation.NEW: Story().state,
        Situation.CREATED: Story().on(Started()).state,
        Situation.SAMPLED: Story().on(Started(), CohortDrawn(first, (("pa", 1),), 1, "uniform", 0)).state,
        Situation.OPEN: Story().open().state,
        Situation.CLOSING: Story().closing().state,
        Situation.AGGREGATED: Story().aggregated().state,
        Situation.CHARGED: Story().charged().state,
        Situation.ABANDONED: Story().open().on(DeadlinePassed(first)).state,
        Situation.PAUSED: Story().on(Started(), PauseRequested()).state,
        Situation.ENDED: Story().open().on(CancelRequested("enough")).state,
    }


RESTS = tuple(here for here in Situation if here is not Situation.PAST)
EVENT_TYPES = tuple(type(event) for event in events_of(RoundKey(0, 0)))


def test_the_table_knows_every_event_and_every_situation() -> None:
    assert len(EVENT_TYPES) == 21
    assert {event for _, event in TABLE} == set(EVENT_TYPES)
    assert {here for here, _ in TABLE} == IGNORED.keys() == set(Situation)
    assert states().keys() == set(RESTS)


def test_no_move_is_also_ignored() -> None:
    assert [(here, event) for here, event in TABLE if event in IGNORED[here]] == []


@pytest.mark.parametrize(("here", "event"), list(itertools.product(RESTS, EVENT_TYPES)))
def test_a_pair_is_a_move_or_ignored_or_refused_by_name(here: Situation, event: type[Event]) -> None:
    state = states()[here]
    key = state.round.key if state.round else RoundKey(0, 0)
    sample = events_of(key)[EVENT_TYPES.index(event)]
    if (here, event) in TABLE:
        assert row_of(state, sample, here) is here
        return
    if event in IGNORED[here]:
        ignored = step(state, sample, 0.0)
        assert ignored.state is state
        assert ignored.effects == ()
        return
    with pytest.raises(IllegalTransition) as refused:
        step(state, sample, 0.0)
    assert (refused.value.run_id, refused.value.event) == ("rstory", sample.kind)
    assert f"run rstory: event '{sample.kind}' is not allowed in {here}" in str(refused.value)


@pytest.mark.parametrize("event", EVENT_TYPES)
def test_a_pair_about_an_earlier_round_is_listed_or_refused_by_name(event: type[Event]) -> None:
    state = Story().closing().release().state
    sample = events_of(RoundKey(0, 0))[EVENT_TYPES.index(event)]
    if hasattr(sample, "key"):
        assert row_of(state, sample, Situation.CREATED) is Situation.PAST
        assert (Situation.PAST, event) in TABLE or event in IGNORED[Situation.PAST]
    else:
        assert row_of(state, sample, Situation.CREATED) is Situation.CREATED
        assert (Situation.PAST, event) not in TABLE
        assert event not in IGNORED[Situation.PAST]


@pytest.mark.parametrize("here", [here for here in RESTS if here not in (Situation.NEW, Situation.ENDED)])
def test_an_event_about_a_round_that_has_not_begun_is_refused(here: Situation) -> None:
    with pytest.raises(IllegalTransition, match=r"round 8 has not begun; the run is at round 1"):
        step(states()[here], DeadlinePassed(RoundKey(7, 0)), 0.0)


def test_every_situation_is_reachable_and_only_an_extension_leads_out_of_the_end() -> None:
    arrows = {(here, there) for (here, _), move in TABLE.items() for there in move.to}
    reached = {Situation.NEW}
    while more := {there for here, there in arrows if here in reached} - reached:
        reached |= more
    assert reached == set(Situation) - {Situation.PAST}
    assert {here for here, _ in arrows} - {Situation.PAST} == reached
    assert {event for (here, event), move in TABLE.items() if here is Situation.ENDED and move.to} == {ExtendRequested}


def test_a_handler_that_ends_where_the_table_does_not_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    move = TABLE[Situation.CREATED, PauseRequested]
    monkeypatch.setitem(TABLE, (Situation.CREATED, PauseRequested), Move(move.handler, to=()))
    with pytest.raises(RoundError, match="led from created to paused, outside the transition table"):
        Story().on(Started(), PauseRequested())


def test_a_refused_event_leaves_the_state_as_it_was() -> None:
    state = Story().open().state
    copy = replace(state)
    with pytest.raises(IllegalTransition):
        step(state, Charged(RoundKey(0, 0)), 0.0)
    assert state == copy
