"""Two servers on one run: whenever another one takes over, the stale server writes nothing.

There are 10,000 schedules with ``--every-schedule``; without it 75. Each has the events of a random run
(``tests.server.rounds.schedules``), and another server takes over between two of them, or inside a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import psycopg
import pytest
from sqlalchemy import Connection

from atoll.server.rounds import Event, replay
from atoll.server.stores import CommitError, event_log, runs, schema_version, server_turns
from atoll.server.stores.dialects import parse_url, writer_engine
from atoll.server.stores.event_log import LoggedEvent
from atoll.server.stores.server_turns import HOLDER, ServerTurn
from atoll.server.stores.writer import Writer
from tests.patience import WAIT_S
from tests.server.rounds.json_mapping import EVENTS
from tests.server.rounds.schedules import play
from tests.server.stores.samples import run

pytestmark = pytest.mark.slow

EVERY, FEW = 10_000, 75
STALE = "another server has used the database|the connection is closed|terminating connection|closed unexpectedly"
Log = Sequence[tuple[Event, float]]


class Server:
    """The writing side of a server, which begins its turn at once."""

    def __init__(self, url: str) -> None:
        engine = writer_engine(parse_url(url), turn=ServerTurn())
        schema_version.upgrade(engine)
        self.writer = Writer(engine)

    def append(self, run_id: str, start: int, log: Log) -> None:
        """Append the events from ``start`` on, like a driver that knows the earlier ones."""
        self.writer.submit(event_log.append, run_id, rows_of(log, start)).result()

    def logged(self, run_id: str) -> Log:
        found = self.writer.submit(lambda connection: list(event_log.replay(connection, run_id))).result()
        return [(EVENTS.validate_json(logged.body), logged.at) for logged in found]


def rows_of(log: Log, start: int) -> list[LoggedEvent]:
    return [
        LoggedEvent(seq, at, event.kind, EVENTS.dump_json(event).decode())
        for seq, (event, at) in enumerate(log[start:], start)
    ]


def successor(url: str) -> Server:
    """Take over, as ``stores.standby`` does when the active server is silent."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"SELECT pg_terminate_backend(pid) FROM (" + HOLDER.encode() + b") h")
    return Server(url)


def take_over_within(stale: Server, url: str, run_id: str, log: Log, start: int) -> Server:
    """Take over after the stale server has inserted events and before it commits them."""
    successors: list[Server] = []

    def work(connection: Connection) -> None:
        event_log.append(connection, run_id, rows_of(log, start))
        successors.append(successor(url))

    with pytest.raises(CommitError, match=STALE):
        stale.writer.submit(work).result()
    return successors[0]


def play_one(seed: int, first: Server, url: str) -> Server:
    """One schedule; returns the server that is active then."""
    rng, world = Random(f"{seed}: takeover"), play(seed)
    run_id, log = f"r{seed:012d}", world.durable.log
    at = rng.randrange(len(log))
    first.writer.submit(runs.add, run(run_id)).result()
    first.append(run_id, 0, log[:at])
    within = rng.random() < 1 / 3
    second = take_over_within(first, url, run_id, log, at) if within else successor(url)
    ahead = min(len(log), at + rng.choice((0, 1, 2)))
    second.append(run_id, at, log[:ahead])
    gone = rng.random() < 1 / 3
    if gone:
        second.writer.close()  # its lock is free, and the stale server may not take it
    for start in (at, ahead):
        with pytest.raises(CommitError, match=STALE):
            first.append(run_id, start, log)
    if gone:
        second = Server(url)
    assert second.logged(run_id) == log[:ahead]
    second.append(run_id, ahead, log)
    assert replay(world.start, second.logged(run_id)) == world.state
    first.writer.close()
    return second


def prepare(url: str) -> None:
    """Create the tables; commits need not reach the disk, because the database never stops."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"ALTER DATABASE atoll SET synchronous_commit = off")
    engine = writer_engine(parse_url(url))
    schema_version.upgrade(engine)
    engine.dispose()


def test_the_stale_one_never_writes(
    postgresql_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_turns, "_LOCK_PATIENCE_S", int(WAIT_S))  # for a closed connection's process to end
    prepare(postgresql_url)
    at_work = Server(postgresql_url)
    for seed in range(EVERY if request.config.getoption("every_schedule") else FEW):
        at_work = play_one(seed, at_work, postgresql_url)
    at_work.writer.close()
