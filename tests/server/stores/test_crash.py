"""Acknowledged writes survive kill -9; each unacknowledged write exists as a whole or not at all."""

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import Connection

from atoll.server.stores import LoggedEvent, Report, Store, event_log, participants, reports, runs
from atoll.server.stores.directory_blobs import DirectoryBlobStore
from tests.server.stores.samples import ALICE, RUN, participant, run

# Each write is an event and a report, in one function; ``ack N`` is printed when write N is durable.
_WRITER = """
import asyncio, pathlib, sys
from atoll.server.stores import Store, event_log, reports
from tests.server.stores.samples import ALICE, RUN, events, report

def write(connection, number):
    event_log.append(connection, RUN, events(number, 1))
    reports.record(connection, report(number))

async def go(store):
    start = await store.reader.run(event_log.next_seq, RUN)
    for first in range(start, 100_000, 8):
        numbers = range(first, first + 8)
        for number, task in [(n, asyncio.ensure_future(store.writer.run(write, n))) for n in numbers]:
            await task
            print("ack", number, flush=True)

asyncio.run(go(Store.open(pathlib.Path(sys.argv[1]))))
"""

_BLOB_WRITER = """
import pathlib, sys
from atoll.server.stores import DirectoryBlobStore
store = DirectoryBlobStore(pathlib.Path(sys.argv[1]))
number = 0
while True:
    with store.create(chunk_bytes=4096) as writer:
        for _ in range(8):
            writer.write(number.to_bytes(8, "little") * 1000)
        print("ack", writer.commit().name, flush=True)
    number += 1
"""


def _acknowledged(script: str, place: Path, seed: int) -> Iterator[str]:
    """The writes that a process acknowledged until it was killed, at a moment determined by the seed."""
    command = [sys.executable, "-c", script, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from _read(process.stdout, random.Random(seed).randrange(1, 60))
        process.kill()
        yield from _read(process.stdout, None)


def _read(lines: IO[str], count: int | None) -> Iterator[str]:
    for line in lines:
        whole = re.fullmatch(r"ack (\w+)\n", line)
        if whole:
            yield whole[1]
        if count is not None and (count := count - 1) <= 0:
            return


def _events(connection: Connection) -> list[LoggedEvent]:
    return list(event_log.replay(connection, RUN))


def _reports(connection: Connection, count: int) -> list[Report]:
    return [item for number in range(count) for item in reports.of_attempt(connection, RUN, number, 0)]


@pytest.mark.system
def test_every_acknowledged_write_survives(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.writer.submit(runs.add, run()).result()
    store.writer.submit(participants.add, participant(ALICE)).result()
    store.close()
    written = 0
    for seed in range(8 if request.config.getoption("every_fault") else 4):
        numbers = [int(text) for text in _acknowledged(_WRITER, tmp_path, seed)]
        assert numbers
        assert numbers[0] == written
        store = Store.open(tmp_path)
        logged = [event.seq for event in store.reader.submit(_events).result()]
        reported = [item.round for item in store.reader.submit(_reports, len(logged) + 10).result()]
        store.close()
        assert logged == list(range(len(logged)))
        assert len(logged) > numbers[-1]
        assert reported == logged
        written = len(logged)


@pytest.mark.system
def test_every_acknowledged_blob_survives_and_nothing_else_is_left(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    names: set[str] = set()
    for seed in range(5 if request.config.getoption("every_fault") else 3):
        names.update(_acknowledged(_BLOB_WRITER, tmp_path, seed))
        store = DirectoryBlobStore(tmp_path)
        store.sweep()
        assert list((tmp_path / "incoming").iterdir()) == []
        found = set(store.names())
        assert names <= found
        for name in found:
            store.verify(name)
