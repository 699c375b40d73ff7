from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.identity import ParticipantKind
from atoll.server.rounds import (
    CohortDrawn,
    Member,
    MemberStatus,
    Phase,
    Published,
    RecordRound,
    Roster,
    RoundKey,
    RoundKind,
    RoundState,
    UpdateRef,
)
from atoll.server.runs.histories import online, record_learned, reported, seconds_by_hour, selected
from atoll.server.runs.stepping import Played
from atoll.server.stores import Participant, ParticipantHistory, Store, history, participants
from atoll.server.stores.history import HOURS, REPORTS_KEPT

HOUR_S, DAY_S = 3600.0, 86_400.0
KNOWN = ParticipantHistory("p", 0.0)


@pytest.mark.parametrize(
    ("start", "stop", "hours"),
    [
        (0.0, 0.0, {}),
        (5.0, 4.0, {}),
        (0.0, 60.0, {0: 60.0}),
        (HOUR_S - 10.0, HOUR_S + 20.0, {0: 10.0, 1: 20.0}),
        (DAY_S - 30.0, DAY_S + 30.0, {23: 30.0, 0: 30.0}),
        (10 * DAY_S + 2 * HOUR_S, 10 * DAY_S + 4 * HOUR_S, {2: HOUR_S, 3: HOUR_S}),
    ],
)
def test_time_falls_into_its_hours(start: float, stop: float, hours: dict[int, float]) -> None:
    assert seconds_by_hour(start, stop) == tuple(hours.get(hour, 0.0) for hour in range(HOURS))


@given(st.floats(0.0, 2e9), st.floats(0.0, 40 * DAY_S))
def test_no_second_is_lost_or_counted_twice(start: float, length: float) -> None:
    hours = seconds_by_hour(start, start + length)
    assert sum(hours) == pytest.approx(length, rel=1e-6, abs=1e-3)
    assert all(0.0 <= hour <= (length // DAY_S + 1) * HOUR_S + 1e-3 for hour in hours)


def test_reports_are_kept_up_to_a_bound() -> None:
    known = KNOWN
    for number in range(REPORTS_KEPT + 3):
        known = reported(float(number), 5.0)(known)
    assert known.times_reported == REPORTS_KEPT + 3
    assert known.report_s == tuple(float(number) for number in range(3, REPORTS_KEPT + 3))
    assert reported(-5.0, 5.0)(KNOWN).report_s == (0.0,)  # a clock that jumped


def test_draws_and_time_online_add_up() -> None:
    known = online(0.0, 10.0)(online(0.0, 10.0)(selected(7.0)(selected(6.0)(KNOWN))))
    assert (known.times_selected, known.last_selected_at, known.online_s[0], known.updated_at) == (2, 7.0, 20.0, 10.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path)
    yield opened
    opened.close()


async def test_what_a_transaction_tells_of_one_participant_is_learned_together(store: Store) -> None:
    """A round ends and the next begins in one transaction: the report and the next draw are both counted."""
    await store.writer.run(participants.add, Participant("p", "acme", ParticipantKind.EDGE, 0.0))
    update = UpdateRef(RoundKey(0, 0), "p", "d", 5, "main")
    member = Member("p", 5, MemberStatus.REPORTED, reported_weight=5, update=update, at=130.0)
    silent = Member("q", 5, MemberStatus.SILENT, at=130.0)
    roster = Roster.of((member, silent))
    ended = RoundState(
        RoundKey(0, 0), RoundKind.TRAIN, 0, Phase.RELEASED, 90.0, roster, opened_at=100.0, ended_at=140.0
    )
    drawn = CohortDrawn(RoundKey(1, 0), (("p", 5),), 2, "uniform", 1)
    played = (
        Played(Published(RoundKey(0, 0)), 140.0, True, (RecordRound(ended),)),
        Played(drawn, 141.0, True, ()),
        Played(drawn, 142.0, False, ()),
    )
    await store.writer.run(record_learned, played)
    known = (await store.reader.run(history.of, ["p", "q"]))["p"]
    assert (known.times_selected, known.last_selected_at) == (1, 141.0)
    assert (known.times_reported, known.report_s) == (1, (30.0,))


@pytest.mark.parametrize("refused_count", [False, True])
async def test_a_refused_report_is_one_where_the_run_says_so(store: Store, refused_count: bool) -> None:
    """The content of an update must not influence later draws."""
    await store.writer.run(participants.add, Participant("p", "acme", ParticipantKind.EDGE, 0.0))
    roster = Roster.of((Member("p", 5, MemberStatus.REJECTED, "not finite", at=130.0),))
    ended = RoundState(
        RoundKey(0, 0), RoundKind.TRAIN, 0, Phase.RELEASED, 90.0, roster, opened_at=100.0, ended_at=140.0
    )
    played = (Played(Published(RoundKey(0, 0)), 140.0, True, (RecordRound(ended),)),)
    await store.writer.run(lambda connection: record_learned(connection, played, refused_count=refused_count))
    known = (await store.reader.run(history.of, ["p"])).get("p")
    assert (known.report_s if known else ()) == ((30.0,) if refused_count else ())
