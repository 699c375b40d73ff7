"""A start from a snapshot reaches the same state as a replay of the whole log."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from atoll.server.errors import CorruptDataError
from atoll.server.identity import ParticipantKind
from atoll.server.rounds import CohortDrawn, Event, RunState, step
from atoll.server.runs import journal as journals
from atoll.server.runs.journal import Replayed, SqlJournal, replayed, snapshot_of
from atoll.server.runs.stepping import Entry, Played
from atoll.server.stores import Snapshot, Store, event_log, participants, runs, schema, snapshots
from tests.server.rounds.schedules import play
from tests.server.rounds.simulation import World

pytestmark = pytest.mark.slow

SEEDS = range(400)
LONG = 12
"""A seed whose run has a log of several rounds."""


def states_of(world: World) -> Iterator[RunState]:
    """The run before its first event, and after each one."""
    yield (state := world.start)
    for event, at in world.durable.log:
        yield (state := step(state, event, at).state)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(one, marks=pytest.mark.every_schedule) for one in (100, 200, 300))]
)
def test_a_snapshot_at_any_place_and_the_events_since_give_the_state_of_the_whole_log(first: int) -> None:
    for seed in SEEDS[first : first + 100]:
        world = play(seed)
        states = list(states_of(world))
        for place in {0, len(states) // 3, len(states) // 2, len(states) - 1}:
            snapshot = snapshot_of(states[place], place)
            assert journals._state_of(snapshot) == states[place]
        assert states[-1] == world.state


class Log:
    """A run's log as the journal keeps it, written event by event."""

    def __init__(self, store: Store, world: World, *, keep_events: int) -> None:
        self.store = store
        self.first = world.start
        self.world = world
        self.journal = SqlJournal(store.writer, store.reader, keep_events=keep_events)

    async def write(self) -> RunState:
        """Store the whole schedule except its end, since an ended run is not resumed."""
        everyone = {who for event, _ in self.world.durable.log for who in _who(event)}

        def fill(connection: Connection) -> None:
            runs.add(
                connection,
                runs.Run(self.first.run_id, "t", "", b"", "m0", "m0", 1, "submitted", "admin", 1.0),
            )
            for name in sorted(everyone):
                participants.add(connection, participants.Participant(name, "acme", ParticipantKind.EDGE, 1.0))

        await self.store.writer.run(fill)
        steps = pairwise(states_of(self.world))
        last = self.first
        for seq, ((event, at), (before, after)) in enumerate(zip(self.world.durable.log, steps, strict=True)):
            if after.status.ended:
                break
            played = Played(event, at, changed=True, effects=step(before, event, at).effects)
            await self.journal.append(Entry(before, after, seq, (played,)))
            last = after
        return last

    async def resumed(self) -> Replayed:
        return await SqlJournal(self.store.writer, self.store.reader).resume(self.first)


def _who(event: Event) -> Iterable[str]:
    if isinstance(event, CohortDrawn):
        return [participant for participant, _ in event.members]
    return []


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_EVENTS", 8)
    monkeypatch.setattr(journals, "_MOST_EVENTS", 20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path)
    yield opened
    opened.close()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", [LONG, 3, 11, 58])
async def test_the_kept_snapshot_equals_a_replay_from_scratch(store: Store, seed: int) -> None:
    log = Log(store, play(seed), keep_events=1_000_000)
    left = await log.write()
    found = await log.resumed()
    assert found.state == left
    assert found.next_seq - found.snapshot_seq <= 20 + 8

    def from_scratch(connection: Connection) -> Replayed:
        snapshots.drop(connection, log.first.run_id)
        return replayed(connection, log.first)

    assert await store.writer.run(from_scratch) == Replayed(left, found.next_seq, 0)


@pytest.mark.usefixtures("often")
class TestPruned:
    async def log(self, store: Store) -> tuple[Log, RunState]:
        log = Log(store, play(LONG), keep_events=0)
        left = await log.write()
        kept = await store.reader.run(lambda connection: snapshots.newest_first(connection, log.first.run_id))
        assert len(kept) == snapshots.KEPT
        return log, left

    async def test_only_events_that_the_older_snapshot_covers_go(self, store: Store) -> None:
        log, left = await self.log(store)

        def first_seq(connection: Connection) -> tuple[int, int]:
            kept = snapshots.newest_first(connection, log.first.run_id)
            events = event_log.read(connection, log.first.run_id, start=kept[-1].seq)
            return kept[-1].seq, events[0].seq

        older, first = await store.reader.run(first_seq)
        assert (older > 0, first) == (True, older)
        assert (await log.resumed()).state == left

    async def test_a_snapshot_that_was_changed_on_disk_is_passed_over(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log, left = await self.log(store)
        newest = (await log.resumed()).snapshot_seq
        spoil(tmp_path, "UPDATE snapshots SET body = replace(body, 'a', 'b') WHERE seq = ?", newest)
        found = await log.resumed()
        assert found.state == left
        assert 0 < found.snapshot_seq < newest
        assert f"snapshot at event {newest} is left out: it was changed on disk" in caplog.text

    async def test_without_any_snapshot_a_pruned_log_is_refused(self, store: Store, tmp_path: Path) -> None:
        log, _ = await self.log(store)
        spoil(tmp_path, "UPDATE snapshots SET checksum = '00'")
        with pytest.raises(CorruptDataError, match="event 0 is missing") as refused:
            await log.resumed()
        assert "backup" in refused.value.detail.remedy

    async def test_one_of_another_version_is_passed_over(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log, left = await self.log(store)
        newest = (await log.resumed()).snapshot_seq
        other = Snapshot.of(log.first.run_id, newest, 99, "{}")
        spoil(
            tmp_path,
            "UPDATE snapshots SET version = 99, body = '{}', checksum = ? WHERE seq = ?",
            other.checksum,
            newest,
        )
        assert (await log.resumed()).state == left
        assert "it is of version 99" in caplog.text

    async def test_without_a_snapshot_that_it_can_read_an_older_version_refuses_the_run(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        log, _ = await self.log(store)

        def by_a_newer_version(connection: Connection) -> None:
            for one in snapshots.newest_first(connection, log.first.run_id):
                newer = Snapshot.of(one.run_id, one.seq, one.version, one.body[:-1] + ',"lane":1}')
                row = {"body": newer.body, "checksum": newer.checksum}
                connection.execute(update(schema.snapshots).where(schema.snapshots.c.seq == one.seq).values(row))

        await store.writer.run(by_a_newer_version)
        with pytest.raises(CorruptDataError, match=r"first events are gone, and .* lane: Unexpected") as refused:
            await log.resumed()
        assert refused.value.detail.remedy == "start the version of the server that wrote it"
        assert "cannot be read: lane: Unexpected" in caplog.text


def spoil(data: Path, statement: str, *values: Any) -> None:
    """Damage the database like a failing disk."""
    with closing(sqlite3.connect(data / "atoll.sqlite3", isolation_level=None)) as database:
        assert database.execute(statement, values).rowcount
