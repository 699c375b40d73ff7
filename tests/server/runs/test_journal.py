from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from atoll.server.errors import CorruptDataError
from atoll.server.identity import ParticipantKind
from atoll.server.rounds import (
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
    MemberFailed,
    PauseRequested,
    Published,
    Rejected,
    Reported,
    ResumeRequested,
    RetryDue,
    RoundGrid,
    RoundKey,
    RoundPrepared,
    RunPolicy,
    Started,
    StragglerPolicy,
    SumLost,
    UpdateRef,
    WentSilent,
    initial,
    step,
)
from atoll.server.runs.evaluators import Judgement
from atoll.server.runs.journal import (
    Replayed,
    SqlJournal,
    add_judgement,
    event_from_json,
    event_to_json,
    logged_events,
    replayed,
)
from atoll.server.runs.stepping import Entry, Played
from atoll.server.stores import RecordConflictError, Store, event_log, history, participants, rounds, runs
from atoll.server.stores.event_log import LoggedEvent

RUN = "raaaaaaaaaaaa"
ALICE, BOB = "paaaaaaaaaaaa", "pbbbbbbbbbbbb"
KEY = RoundKey(0, 0)
UPDATE = UpdateRef(KEY, ALICE, "d" * 64, 5, "main")
FIRST = initial(RUN, RunPolicy(rounds=1, straggler=StragglerPolicy(cohort_size=2, quorum=1, max_attempts=1)), "m0")
EVERY: list[Event] = [
    Started(),
    CohortDrawn(KEY, ((ALICE, 10), (BOB, 10)), 2, "uniform", 2**62),
    RoundPrepared(KEY, 60.0, 160.0, RoundGrid(30, 32.0, 10, 24)),
    Accepted(KEY, ALICE),
    Declined(KEY, ALICE, "no power"),
    MemberFailed(KEY, ALICE, "out of memory"),
    WentSilent(KEY, ALICE, "gone"),
    Reported(KEY, ALICE, UPDATE, 5, (("train/loss", 0.1),)),
    Reported(KEY, ALICE, None, 5),
    Rejected(KEY, ALICE, "not finite"),
    DeadlinePassed(KEY),
    Aggregated(KEY, 5, 1, "m1"),
    Charged(KEY),
    Published(KEY),
    RetryDue(KEY),
    PauseRequested(),
    ResumeRequested(),
    CancelRequested("enough"),
    ExtendRequested(20),
    EffectFailed(KEY, "fold", "disk"),
    BudgetSpent(KEY, "the limit is reached"),
    SumLost(KEY, "2 updates of its sum cannot be read any more", ()),
]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store.open(tmp_path / "data")

    def fill(connection: Connection) -> None:
        runs.add(connection, runs.Run(RUN, "test", "", b"", "m0", "m0", 1, "submitted", "admin", 1.0))
        for name in (ALICE, BOB):
            participants.add(connection, participants.Participant(name, "acme", ParticipantKind.EDGE, 1.0))

    await opened.writer.run(fill)
    yield opened
    opened.close()


class Player:
    """Steps events and stores them, as a driver does."""

    def __init__(self, store: Store) -> None:
        self.journal = SqlJournal(store.writer, store.reader)
        self.store = store
        self.state = FIRST
        self.seq = 0

    async def play(self, *events: Event) -> None:
        state = self.state
        played: list[Played] = []
        for event in events:
            result = step(state, event, 100.0 + self.seq + len(played))
            changed = result.state is not state
            played.append(Played(event, 100.0 + self.seq + len(played), changed, result.effects))
            state = result.state
        entry = Entry(self.state, state, self.seq, tuple(played))
        await self.journal.append(entry)
        self.state, self.seq = state, self.seq + len(entry.logged)

    async def row(self) -> runs.Run:
        return await self.store.reader.run(lambda connection: runs.get(connection, RUN))


@pytest.fixture
def player(store: Store) -> Player:
    return Player(store)


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.kind)
def test_every_event_survives_the_log(event: Event) -> None:
    assert event_from_json(event_to_json(event)) == event


def test_a_field_at_its_default_is_not_written_so_that_the_release_before_can_read_the_event() -> None:
    assert event_to_json(Started()) == '{"kind":"started"}'
    prepared = RoundPrepared(KEY, 1.0, 2.0)
    assert event_to_json(prepared) == (
        '{"kind":"round_prepared","key":{"round":0,"attempt":0},"window_s":1.0,"deadline_at":2.0}'
    )


def test_no_event_was_forgotten_here() -> None:
    assert {type(event) for event in EVERY} == set(Event.__args__)


async def test_events_come_back_in_order_with_their_times(store: Store, player: Player) -> None:
    await player.play(EVERY[0])
    await player.play(EVERY[1], EVERY[2])
    found = await player.journal.read(RUN, 0)
    assert found == [(event, 100.0 + place) for place, event in enumerate(EVERY[:3])]
    assert await player.journal.read(RUN, 2) == found[2:]
    assert await store.reader.run(lambda connection: replayed(connection, FIRST)) == Replayed(player.state, 3)


async def test_an_entry_that_does_not_continue_the_log_is_refused_whole(player: Player) -> None:
    await player.play(EVERY[0])
    player.state, player.seq = FIRST, 0
    with pytest.raises(RecordConflictError, match="already in the log"):
        await player.play(EVERY[0])
    assert len(await player.journal.read(RUN, 0)) == 1


async def test_what_a_poster_adds_fails_and_nothing_is_stored(player: Player) -> None:
    def refuse(*_: object) -> None:
        raise RecordConflictError("another report stands")

    result = step(FIRST, Started(), 100.0)
    played = Played(Started(), 100.0, changed=True, effects=result.effects, also=refuse)
    with pytest.raises(RecordConflictError):
        await player.journal.append(Entry(FIRST, result.state, 0, (played,)))
    assert await player.journal.read(RUN, 0) == []
    assert (await player.row()).status == "submitted"


class TestStatus:
    async def test_a_run_runs(self, player: Player) -> None:
        await player.play(Started())
        assert (await player.row()).status == "running"

    async def test_a_pending_pause_is_shown_and_taken_back(self, player: Player) -> None:
        await player.play(*EVERY[:3])
        await player.play(PauseRequested())
        assert (await player.row()).reason == "pauses when this round is done"
        await player.play(ResumeRequested())
        assert (await player.row()).reason == ""

    async def test_a_pause_takes_force_however_the_round_ends(self, store: Store) -> None:
        """Here by a report that makes the quorum impossible, without an operator's command."""
        player = Player(store)
        two = StragglerPolicy(cohort_size=2, quorum=2, max_attempts=3)
        player.state = replace(FIRST, policy=RunPolicy(rounds=1, straggler=two))
        await player.play(*EVERY[:3], PauseRequested(), Declined(KEY, BOB, "no"))
        assert (await player.row()).status == "paused"

    async def test_an_end_has_its_time_and_reason(self, player: Player) -> None:
        await player.play(Started())
        await player.play(CancelRequested("enough"))
        row = await player.row()
        assert (row.status, row.reason, row.finished_at) == ("cancelled", "enough", 101.0)


class TestRecords:
    async def test_an_ended_round_is_kept_with_everyone_s_reason(self, store: Store, player: Player) -> None:
        await player.play(*EVERY[:3])
        await player.play(Declined(KEY, ALICE, "no power"), DeadlinePassed(KEY))
        found = await store.reader.run(lambda connection: rounds.get(connection, RUN, 0, 0))
        assert found is not None
        assert (found.phase, found.cohort, found.reported, found.seed) == ("abandoned", 2, 0, 2**62)
        people = await store.reader.run(lambda connection: rounds.members_of(connection, RUN, 0, 0))
        alice, bob = people
        assert (alice.status, alice.detail, bob.status) == ("declined", "no power", "timed_out")

    async def test_who_was_drawn_is_remembered_once(self, store: Store, player: Player) -> None:
        await player.play(EVERY[0], EVERY[1])
        await player.play(EVERY[1])  # the answer came twice: it changes nothing
        known = await store.reader.run(lambda connection: history.of(connection, [ALICE, BOB]))
        assert [one.times_selected for one in known.values()] == [1, 1]


class TestJudgement:
    async def judged(self, store: Store, judgement: Judgement) -> rounds.Round:
        row = rounds.Round(RUN, 0, 0, "train", "released", 1.0, reason="done", metrics=(("train/loss", 1.0),))
        also = add_judgement(RUN, KEY, judgement)

        def work(connection: Connection) -> rounds.Round | None:
            rounds.put(connection, row)
            also(connection, ())
            return rounds.get(connection, RUN, 0, 0)

        found = await store.writer.run(work)
        assert found is not None
        return found

    async def test_metrics_are_added(self, store: Store) -> None:
        found = await self.judged(store, Judgement({"server/loss": 2.0}))
        assert (dict(found.metrics), found.reason) == ({"train/loss": 1.0, "server/loss": 2.0}, "done")

    async def test_a_failure_is_reported(self, store: Store) -> None:
        assert (await self.judged(store, Judgement(failure="it broke"))).reason == "done; it broke"

    async def test_silence_changes_nothing(self, store: Store) -> None:
        assert (await self.judged(store, Judgement())).reason == "done"

    async def test_a_round_without_a_record_has_none(self, store: Store) -> None:
        await store.writer.run(lambda connection: add_judgement(RUN, KEY, Judgement({"x": 1.0}))(connection, ()))


class TestDamage:
    async def log(self, store: Store, *bodies: tuple[str, str]) -> None:
        rows = [LoggedEvent(place, 1.0, kind, body) for place, (kind, body) in enumerate(bodies)]
        await store.writer.run(lambda connection: event_log.append(connection, RUN, rows))

    async def test_an_event_of_another_version_is_named(self, store: Store) -> None:
        await self.log(store, ("started", '{"kind":"started"}'), ("warped", '{"kind":"warped"}'))

        def read(connection: Connection) -> list[tuple[Event, float]]:
            return list(logged_events(connection, RUN))

        with pytest.raises(CorruptDataError, match="event 1 of the log, 'warped'"):
            await store.reader.run(read)

    @pytest.mark.parametrize(
        ("body", "where"),
        [
            ('{"kind":"cancel_requested","reason":"","by":"ann"}', "cancel_requested.by"),
            (
                '{"kind":"accepted","key":{"round":0,"attempt":0,"lane":1},"participant":"a"}',
                "accepted.key.lane",
            ),
        ],
    )
    async def test_a_field_of_a_newer_version_is_refused_not_left_out(
        self, store: Store, body: str, where: str
    ) -> None:
        await self.log(store, ("x", body))
        with pytest.raises(CorruptDataError, match=f"cannot be read: {where}: Unexpected") as refused:
            await store.reader.run(lambda connection: list(logged_events(connection, RUN)))
        assert refused.value.detail.remedy == "start the version of the server that wrote it"

    async def test_a_log_that_does_not_follow_from_itself_is_not_replayed(self, store: Store) -> None:
        await self.log(store, ("started", event_to_json(Started())), ("charged", event_to_json(Charged(KEY))))

        def replay(connection: Connection) -> Replayed:
            return replayed(connection, FIRST)

        with pytest.raises(CorruptDataError, match="event 1 of the log does not follow"):
            await store.reader.run(replay)
