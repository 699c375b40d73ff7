import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from atoll.server.errors import ConflictError, CorruptDataError, ServerError, StorageError, UnavailableError
from atoll.server.rounds import (
    Accepted,
    Aggregated,
    CancelRequested,
    Charged,
    CohortDrawn,
    DrawCohort,
    Effect,
    Event,
    Finish,
    Invite,
    MemberStatus,
    PauseRequested,
    PrepareRound,
    Receipt,
    Reported,
    ResumeRequested,
    RoundGrid,
    RoundKey,
    RoundPrepared,
    RunPolicy,
    RunState,
    StartDeadline,
    Started,
    StragglerPolicy,
    UpdateRef,
    initial,
    replay,
    resume,
)
from atoll.server.runs.driver import RefusedEventError, RunDriver
from atoll.server.runs.stepping import Also, Answer, Entry, Work
from tests.patience import WAIT_S

KEY = RoundKey(0, 0)
GRID = RoundGrid(30, 32.0, 10, 24)
POLICY = RunPolicy(rounds=1, straggler=StragglerPolicy(cohort_size=2, quorum=2))
ALICE, BOB = "alice", "bob"


@dataclass
class MemoryJournal:
    """Stores in a list, or fails: ``failures`` are used up one per append, None lets it pass."""

    log: list[tuple[Event, float]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    failures: list[Exception | None] = field(default_factory=list)
    poison: Exception | None = None
    keep_and_fail: ServerError | None = None
    unreadable: Exception | None = None
    gate: asyncio.Event | None = None

    async def append(self, entry: Entry) -> None:
        if self.gate is not None:
            await self.gate.wait()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        if entry.first_seq != len(self.log):
            raise ConflictError("store.conflict", "the log has moved on")
        for played in entry.played:
            if played.also is not None and self.poison is not None:
                raise self.poison
        self.entries.append(entry)
        self.log += [(played.event, played.at) for played in entry.logged]
        if self.keep_and_fail is not None:
            error, self.keep_and_fail = self.keep_and_fail, None
            raise error

    async def read(self, run: str, start: int) -> Sequence[tuple[Event, float]]:
        assert run == "r"
        if self.unreadable is not None:
            raise self.unreadable
        return self.log[start:]


class Performer:
    """Records effects whose work starts, and the length of the durable log then; ``at_once`` answers some effects."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.performed: list[Effect] = []
        self.begun: list[Effect] = []
        self.asked: list[Effect] = []
        self.at_once: dict[type[Effect], Answer] = {}
        self.durable: list[int] = []
        self.closed = False
        self._journal = journal

    def perform(self, effect: Effect, state: RunState) -> Answer | Work:
        del state
        self.performed.append(effect)
        return self.at_once.get(type(effect)) or partial(self._start, effect)

    def begin(self, effect: Effect) -> None:
        self.begun.append(effect)
        self._start(effect)

    def _start(self, effect: Effect) -> None:
        self.asked.append(effect)
        self.durable.append(len(self._journal.log))

    async def close(self) -> None:
        self.closed = True


@dataclass
class Rig:
    """A driver with its journal and performer."""

    journal: MemoryJournal
    driver: RunDriver
    performer: Performer
    moves: list[RunState]

    async def post(self, event: Event, also: Also | None = None) -> tuple[Effect, ...]:
        return await asyncio.wait_for(self.driver.post(event, also), WAIT_S)

    async def open_round(self) -> None:
        for event in (
            Started(),
            CohortDrawn(KEY, ((ALICE, 10), (BOB, 10)), 2, "uniform", 1),
            RoundPrepared(KEY, 60.0, 160.0, GRID),
        ):
            await self.post(event)


def rig_at(state: RunState, journal: MemoryJournal) -> Rig:
    moves: list[RunState] = []
    driver = RunDriver(state, len(journal.log), journal, lambda: 100.0, lambda moved: moves.append(moved.state))
    return Rig(journal, driver, Performer(journal), moves)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = rig_at(initial("r", POLICY, "m0"), MemoryJournal())
    made.driver.start(made.performer)
    yield made
    await made.driver.stop()


def report(participant: str, digest: str = "d") -> Reported:
    return Reported(KEY, participant, UpdateRef(KEY, participant, digest, 5, "main"), 5)


def kinds(effects: Sequence[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


async def test_effects_begin_after_the_event_is_durable(rig: Rig) -> None:
    assert kinds(await rig.post(Started())) == [DrawCohort]
    assert kinds(rig.performer.asked) == [DrawCohort]
    assert rig.performer.durable == [1]
    assert rig.journal.log == [(Started(), 100.0)]


async def test_each_effect_is_performed_once_and_its_work_starts_once(rig: Rig) -> None:
    await rig.open_round()
    for asked in (rig.performer.performed, rig.performer.asked):
        assert kinds(asked) == [DrawCohort, PrepareRound, Invite, StartDeadline]
    assert rig.performer.begun == []


async def test_posters_are_told_after_the_effects_have_begun(rig: Rig) -> None:
    order: list[str] = []
    rig.journal.gate = asyncio.Event()
    done = rig.driver.post(Started())
    done.add_done_callback(lambda _: order.append(f"told, {len(rig.performer.asked)} begun"))
    await asyncio.sleep(0)
    assert (rig.performer.asked, rig.driver.state.status) == ([], "submitted")
    rig.journal.gate.set()
    await asyncio.wait_for(done, WAIT_S)
    await asyncio.sleep(0)
    assert order == ["told, 1 begun"]


async def test_the_state_is_that_of_the_last_durable_event(rig: Rig) -> None:
    rig.journal.failures = [StorageError("store.unavailable", "disk full", retry_after_s=1.0)]
    with pytest.raises(StorageError, match="disk full"):
        await rig.post(Started())
    assert rig.driver.state == initial("r", POLICY, "m0")
    assert (rig.performer.asked, rig.moves, rig.journal.log) == ([], [], [])
    await rig.post(Started())
    assert kinds(rig.performer.asked) == [DrawCohort]


@pytest.mark.parametrize("error", [OverflowError("too large"), ValueError("gap"), KeyError("x")])
async def test_a_bug_in_the_journal_is_reported_and_later_events_work(
    rig: Rig, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    rig.journal.failures = [error]
    with caplog.at_level(logging.ERROR), pytest.raises(StorageError, match=type(error).__name__):
        await rig.post(Started())
    assert "could not be stored" in caplog.text
    await rig.post(Started())


async def test_what_waits_is_stored_together(rig: Rig) -> None:
    await rig.open_round()
    rig.journal.gate = asyncio.Event()
    first = rig.driver.post(Accepted(KEY, ALICE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [rig.driver.post(Accepted(KEY, BOB)), rig.driver.post(report(ALICE)), rig.driver.post(report(BOB))]
    rig.journal.gate.set()
    await asyncio.wait_for(asyncio.gather(first, *others), WAIT_S)
    assert [len(entry.played) for entry in rig.journal.entries[-2:]] == [1, 3]
    assert rig.driver.state.round is not None
    assert rig.driver.state.round.phase == "closing"


async def test_each_poster_gets_the_effects_of_its_own_event(rig: Rig) -> None:
    await rig.open_round()
    answers = await asyncio.gather(rig.post(report(ALICE)), rig.post(report(BOB)))
    for participant, effects in zip((ALICE, BOB), answers, strict=True):
        assert [one.participant for one in effects if isinstance(one, Receipt)] == [participant]


async def test_an_event_that_the_run_does_not_allow_is_refused_alone(rig: Rig) -> None:
    await rig.post(Started())
    early = rig.driver.post(Aggregated(KEY, 1, 1, "m1"))
    good = rig.driver.post(PauseRequested())
    with pytest.raises(RefusedEventError, match="aggregated"):
        await asyncio.wait_for(early, WAIT_S)
    assert isinstance(early.exception(), ConflictError)
    await asyncio.wait_for(good, WAIT_S)
    assert [event.kind for event, _ in rig.journal.log] == ["started", "pause_requested"]


async def test_a_sum_of_another_set_is_no_mere_refusal(rig: Rig) -> None:
    """It must fail the run: a driver that only refused it would leave the round closing forever."""
    await rig.open_round()
    await asyncio.gather(rig.post(report(ALICE)), rig.post(report(BOB)))
    with pytest.raises(CorruptDataError, match="contributions"):
        await rig.post(Aggregated(KEY, 1, 2, "m1"))


async def test_one_event_that_cannot_be_stored_does_not_spoil_the_others(rig: Rig) -> None:
    await rig.open_round()
    rig.journal.poison = ConflictError("store.conflict", "another report stands")

    bad = rig.driver.post(report(ALICE), lambda *_: None)
    good = rig.driver.post(report(BOB))
    with pytest.raises(ConflictError, match="another report stands"):
        await asyncio.wait_for(bad, WAIT_S)
    await asyncio.wait_for(good, WAIT_S)
    assert rig.driver.state.round is not None
    assert rig.driver.state.round.roster.with_status(MemberStatus.REPORTED) == (BOB,)


async def test_an_outage_is_not_tried_once_per_event(rig: Rig) -> None:
    await rig.open_round()
    outage = UnavailableError("store.busy", "busy", retry_after_s=1.0)
    rig.journal.failures = [outage, None, None]
    posts = [rig.driver.post(report(ALICE)), rig.driver.post(report(BOB))]
    for post in posts:
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(post, WAIT_S)
    assert rig.journal.failures == [None, None]


async def test_what_was_stored_though_the_journal_failed_is_not_forgotten(rig: Rig) -> None:
    """A commit may fail after it became durable: its events are then in the log, and their effects must begin."""
    rig.journal.keep_and_fail = StorageError("store.commit", "lost the connection", retry_after_s=1.0)
    with pytest.raises(StorageError):
        await rig.post(Started())
    assert rig.performer.asked == []
    await rig.post(Started())  # the poster repeats it, and it changes nothing more
    assert kinds(rig.performer.asked) == [DrawCohort]
    assert [event.kind for event, _ in rig.journal.log] == ["started"]
    assert rig.driver.next_seq == 1


async def test_effects_without_a_change_are_not_stored(rig: Rig) -> None:
    await rig.open_round()
    stored = len(rig.journal.entries)
    effects = await rig.post(report("stranger"))
    assert kinds(effects) == [Receipt]
    assert len(rig.journal.entries) == stored


async def test_what_a_poster_adds_is_stored_even_without_a_change(rig: Rig) -> None:
    await rig.open_round()
    stored = len(rig.journal.entries)
    await rig.post(report("stranger"), lambda *_: None)
    assert len(rig.journal.entries) == stored + 1
    assert rig.journal.entries[-1].logged == ()


async def test_watchers_wake_at_every_change(rig: Rig) -> None:
    before = rig.driver.changed
    await rig.post(Started())
    assert before.is_set()
    assert rig.driver.changed is not before
    assert [state.status for state in rig.moves] == ["running"]


class TestStop:
    async def test_what_waits_is_refused(self, rig: Rig) -> None:
        rig.journal.gate = asyncio.Event()
        stored = rig.driver.post(Started())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = rig.driver.post(PauseRequested())
        await asyncio.wait_for(rig.driver.stop(), WAIT_S)
        for post in (stored, waiting, rig.driver.post(ResumeRequested())):
            with pytest.raises(UnavailableError, match="stopping"):
                await asyncio.wait_for(post, WAIT_S)
        assert rig.performer.closed
        assert rig.driver.stopped

    async def test_watchers_are_let_go(self, rig: Rig) -> None:
        watched = rig.driver.changed
        await rig.driver.stop()
        assert watched.is_set()

    async def test_an_ended_run_takes_nothing_more(self, rig: Rig) -> None:
        await rig.post(Started())
        effects = await rig.post(CancelRequested("enough"))
        assert Finish in kinds(effects)
        with pytest.raises(RefusedEventError, match="cancelled"):
            await rig.post(PauseRequested())
        assert rig.driver._task is not None
        await asyncio.wait_for(rig.driver._task, WAIT_S)  # nothing is left behind

    async def test_what_came_with_the_last_event_is_answered(self, rig: Rig) -> None:
        await rig.post(Started())
        posts = [rig.driver.post(CancelRequested("enough")), rig.driver.post(Charged(KEY))]
        await asyncio.wait_for(asyncio.gather(*posts), WAIT_S)


async def test_a_restarted_run_asks_again_for_what_it_waits_for(rig: Rig) -> None:
    """After every event of a round, the replayed state is the driver's, and its pending effects begin."""
    events: list[Event] = [
        Started(),
        CohortDrawn(KEY, ((ALICE, 10), (BOB, 10)), 2, "uniform", 1),
        RoundPrepared(KEY, 60.0, 160.0, GRID),
        Accepted(KEY, ALICE),
        report(ALICE),
        report(BOB),
        Aggregated(KEY, 2 * 5 << GRID.weight_shift, 2, "m1"),
        Charged(KEY),
    ]
    for event in events:
        await rig.post(event)
        again = rig_at(replay(initial("r", POLICY, "m0"), rig.journal.log), rig.journal)
        assert again.driver.state == rig.driver.state
        again.driver.start(again.performer)
        assert again.performer.begun == again.performer.asked == list(resume(rig.driver.state, 100.0))
        assert again.performer.asked
        await again.driver.stop()


async def test_a_whole_opening(rig: Rig) -> None:
    await rig.open_round()
    assert kinds(rig.performer.asked) == [DrawCohort, PrepareRound, Invite, StartDeadline]


class TestAtOnce:
    DRAWN = CohortDrawn(KEY, ((ALICE, 10), (BOB, 10)), 2, "uniform", 1)

    async def test_answers_at_hand_are_stored_with_what_they_answer(self, rig: Rig) -> None:
        """One transaction from the start to the open round."""
        rig.performer.at_once = {
            DrawCohort: Answer(self.DRAWN),
            PrepareRound: Answer(RoundPrepared(KEY, 60.0, 160.0, GRID)),
        }
        assert kinds(await rig.post(Started())) == [DrawCohort]
        (entry,) = rig.journal.entries
        assert [played.event.kind for played in entry.logged] == ["started", "cohort_drawn", "round_prepared"]
        assert kinds(rig.performer.asked) == [Invite, StartDeadline]
        assert rig.performer.durable == [3, 3]
        assert rig.driver.state == replay(initial("r", POLICY, "m0"), rig.journal.log)

    async def test_nothing_of_a_chain_has_happened_if_it_is_not_stored(self, rig: Rig) -> None:
        cleaned: list[str] = []
        answer = Answer(self.DRAWN, cleanup=lambda: cleaned.append(rig.driver.state.status))
        rig.performer.at_once = {DrawCohort: answer}
        rig.journal.failures = [StorageError("store.unavailable", "disk full", retry_after_s=1.0)]
        with pytest.raises(StorageError):
            await rig.post(Started())
        assert rig.driver.state == initial("r", POLICY, "m0")
        assert (rig.performer.asked, cleaned) == ([], ["submitted"])
        await rig.post(Started())
        assert (kinds(rig.performer.asked), cleaned) == ([PrepareRound], ["submitted", "running"])

    async def test_what_an_answer_adds_is_stored_with_it(self, rig: Rig) -> None:
        def adds(*_: object) -> None: ...

        rig.performer.at_once = {DrawCohort: Answer(self.DRAWN, adds)}
        await rig.post(Started())
        assert [played.also for played in rig.journal.entries[0].played] == [None, adds]

    async def test_an_answer_that_the_run_does_not_allow_leaves_the_effect_to_be_done(self, rig: Rig) -> None:
        rig.performer.at_once = {DrawCohort: Answer(Charged(KEY))}
        await rig.post(Started())
        assert kinds(rig.performer.asked) == [DrawCohort]
        assert [event.kind for event, _ in rig.journal.log] == ["started"]

    async def test_an_answer_that_cannot_be_given_leaves_the_effect_to_be_done(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> Answer | Work:
            raise CorruptDataError("release.digest", "another model")

        monkeypatch.setattr(rig.performer, "perform", fails)
        await rig.post(Started())
        assert kinds(rig.performer.asked) == [DrawCohort]

    async def test_after_a_journal_failure_only_the_last_effect_of_a_stored_chain_is_performed(self, rig: Rig) -> None:
        rig.performer.at_once = {DrawCohort: Answer(self.DRAWN)}
        rig.journal.keep_and_fail = StorageError("store.commit", "lost the connection", retry_after_s=1.0)
        with pytest.raises(StorageError):
            await rig.post(Started())
        await rig.post(Started())
        assert kinds(rig.performer.asked) == [PrepareRound]


class TestBreakdown:
    """A log that is damaged or cannot be continued: no caller waits forever, and nothing more is stored."""

    @pytest.fixture
    async def broken(self, rig: Rig) -> Rig:
        await rig.open_round()
        rig.journal.failures = [
            CorruptDataError("store.damaged", "the database is damaged", where="/srv/atoll.sqlite3")
        ]
        with pytest.raises(CorruptDataError):
            await rig.post(report(ALICE))
        return rig

    async def test_a_damaged_log_stops_the_run(self, broken: Rig) -> None:
        assert broken.driver.stopped
        assert broken.driver.broken is not None
        assert "the database is damaged" in str(broken.driver.broken.detail)
        assert "/srv" not in str(broken.driver.broken.detail)
        assert not broken.driver.state.status.ended

    async def test_later_posters_are_told_why(self, broken: Rig) -> None:
        with pytest.raises(CorruptDataError, match="cannot go on: the database is damaged"):
            await broken.post(report(BOB))
        assert len(broken.journal.log) == 3

    async def test_watchers_are_told(self, rig: Rig) -> None:
        changed = rig.driver.changed
        rig.journal.failures = [CorruptDataError("store.damaged", "the database is damaged")]
        with pytest.raises(CorruptDataError):
            await rig.post(Started())
        await asyncio.wait_for(changed.wait(), WAIT_S)

    @pytest.mark.parametrize(
        "unreadable", [CorruptDataError("store.damaged", "the database is damaged"), KeyError("a bug")]
    )
    @pytest.mark.parametrize("events", [1, 3])
    async def test_a_log_that_can_be_neither_written_nor_read_stops_the_run(
        self, rig: Rig, unreadable: Exception, events: int
    ) -> None:
        rig.journal.failures = [ValueError("a bug")] * 8
        rig.journal.unreadable = unreadable
        posts = [rig.driver.post(PauseRequested()) for _ in range(events)]
        for _ in range(2):  # the first of them may be refused alone, and only the next finds the log unreadable
            posts.append(rig.driver.post(PauseRequested()))
            with pytest.raises(ServerError):
                await asyncio.wait_for(posts[-1], WAIT_S)
        found = await asyncio.wait_for(asyncio.gather(*posts, return_exceptions=True), WAIT_S)
        assert all(isinstance(error, ServerError) for error in found)
        assert rig.driver.stopped

    async def test_a_chain_that_cannot_be_stored_either_way_refuses_its_event_alone(self, rig: Rig) -> None:
        """The answers to an earlier event do not apply to this one: it is tried once without answers."""
        rig.performer.at_once = {DrawCohort: Answer(CohortDrawn(KEY, ((ALICE, 10), (BOB, 10)), 2, "uniform", 1))}
        rig.journal.failures = [ValueError("a bug")] * 2
        with pytest.raises(StorageError):
            await rig.post(Started())
        assert not rig.driver.stopped
        await rig.post(Started())
        assert [event.kind for event, _ in rig.journal.log] == ["started", "cohort_drawn"]

    async def test_an_outage_while_the_log_is_read_again_is_waited_for(self, rig: Rig) -> None:
        rig.journal.failures = [ValueError("a bug")]
        with pytest.raises(StorageError):
            await rig.post(Started())
        rig.journal.unreadable = UnavailableError("store.busy", "busy", retry_after_s=1.0)
        with pytest.raises(UnavailableError):
            await rig.post(Started())
        rig.journal.unreadable = None
        await rig.post(Started())
        assert [event.kind for event, _ in rig.journal.log] == ["started"]


class TestPatience:
    async def test_a_patient_event_shares_the_transaction_of_the_next(self, rig: Rig) -> None:
        await rig.open_round()
        patient = rig.driver.post(Accepted(KEY, ALICE), patient=True)
        other = rig.driver.post(Accepted(KEY, BOB), patient=True)
        await rig.post(report(ALICE))
        assert [played.event.kind for played in rig.journal.entries[-1].played] == ["accepted", "accepted", "reported"]
        await asyncio.wait_for(asyncio.gather(patient, other), WAIT_S)

    async def test_it_happened_when_it_was_handed_in(self, rig: Rig) -> None:
        await rig.open_round()
        times = iter([1000.0, 2000.0, 3000.0])
        rig.driver.clock = lambda: next(times, 4000.0)
        rig.driver.post(Accepted(KEY, ALICE), patient=True)
        await rig.post(report(ALICE))
        accepted, reported, *_ = rig.journal.entries[-1].played
        assert (accepted.at, reported.at) == (1000.0, 2000.0)

    async def test_it_is_stored_all_the_same_if_nothing_else_comes(self, rig: Rig) -> None:
        await rig.open_round()
        await asyncio.wait_for(rig.driver.post(Accepted(KEY, ALICE), patient=True), WAIT_S)
        assert rig.journal.log[-1][0] == Accepted(KEY, ALICE)
