"""A run's durable event log: replaying it gives the run's state.

Each row has a checksum of its content, so that a bit flip on disk is found before it leads to a wrong sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from atoll.server.stores.errors import RecordConflictError, StoreDamagedError
from atoll.server.stores.row_checksums import checksum_of
from atoll.server.stores.schema import events

PAGE_EVENTS = 1000
_ROW_BYTES = 110
"""Approximate bytes of an event in addition to its body: run, sequence number, time, kind, checksum and index."""
# Each transaction of a run needs both; building a statement costs more than running it.
_APPEND = insert(events)
_LAST_SEQ = select(func.max(events.c.seq)).where(events.c.run_id == bindparam("run"))


@dataclass(frozen=True)
class LoggedEvent:
    """One event: its sequence number in the log (0, 1, 2, ...), its time, its kind, and its body as JSON text."""

    seq: int
    at: float
    kind: str
    body: str


def append(connection: Connection, run_id: str, batch: Sequence[LoggedEvent]) -> None:
    """Append events; ``seq`` continues the log without a gap.

    Raises:
        RecordConflictError: if the log is longer than expected: another server drives this run.
        ValueError: if the batch has a gap or does not continue the log.
    """
    if not batch:
        return
    expected = next_seq(connection, run_id)
    if [event.seq for event in batch] != list(range(batch[0].seq, batch[0].seq + len(batch))) or batch[
        0
    ].seq > expected:
        raise ValueError(f"run {run_id}: events {[event.seq for event in batch][:8]} do not continue at {expected}")
    try:
        connection.execute(_APPEND, [_row(run_id, event) for event in batch])
    except IntegrityError as error:
        raise RecordConflictError(
            f"run {run_id}: event {batch[0].seq} is already in the log, which goes on at {expected}",
            "make sure that only one server drives this run",
        ) from error


def has_kind(connection: Connection, run_id: str, kind: str, *, since: float) -> bool:
    """Whether the log holds an event of this kind from epoch second ``since`` or later."""
    query = select(events.c.seq).where(events.c.run_id == run_id, events.c.kind == kind, events.c.at >= since)
    return connection.execute(query.limit(1)).first() is not None


def prune(connection: Connection, run_id: str, *, below: int) -> int:
    """Remove the events before a sequence number; returns how many. A snapshot must exist there or later."""
    return connection.execute(delete(events).where(events.c.run_id == run_id, events.c.seq < below)).rowcount


@dataclass(frozen=True, slots=True)
class HeldEvents:
    """Number of events in a run's log, and their approximate size in the database."""

    count: int
    stored_bytes: int


def held(connection: Connection, run_id: str) -> HeldEvents:
    """The size of a run's log; reads every event."""
    size = func.sum(func.length(events.c.body) + _ROW_BYTES)
    row = connection.execute(select(func.count(), size).where(events.c.run_id == run_id)).one()
    return HeldEvents(row[0], int(row[1] or 0))


def first_seq(connection: Connection, run_id: str) -> int | None:
    """The sequence number of the oldest kept event; None if there is none."""
    first: int | None = connection.execute(select(func.min(events.c.seq)).where(events.c.run_id == run_id)).scalar()
    return first


def next_seq(connection: Connection, run_id: str) -> int:
    """The sequence number of the next event."""
    last: int | None = connection.execute(_LAST_SEQ, {"run": run_id}).scalar()
    return 0 if last is None else last + 1


def read(connection: Connection, run_id: str, *, start: int = 0, limit: int = PAGE_EVENTS) -> tuple[LoggedEvent, ...]:
    """Up to ``limit`` events from ``start`` on, in order, each verified.

    Raises:
        StoreDamagedError: if an event is missing or was altered on disk.
    """
    columns = (events.c.seq, events.c.at, events.c.kind, events.c.body, events.c.checksum)
    query = select(*columns).where(events.c.run_id == run_id, events.c.seq >= start).order_by(events.c.seq).limit(limit)
    found = []
    for place, row in enumerate(connection.execute(query), start=start):
        event = LoggedEvent(row.seq, row.at, row.kind, row.body)
        if event.seq != place:
            raise StoreDamagedError(f"run {run_id}: event {place} is missing from the log")
        if row.checksum != _checksum(run_id, event):
            raise StoreDamagedError(f"run {run_id}: event {place} of the log was changed on disk")
        found.append(event)
    return tuple(found)


def replay(connection: Connection, run_id: str, *, start: int = 0) -> Iterator[LoggedEvent]:
    """Yield all events from ``start`` on, holding one page of them at a time.

    Raises:
        StoreDamagedError: if an event is missing or was altered on disk.
    """
    while page := read(connection, run_id, start=start):
        yield from page
        start = page[-1].seq + 1


def _row(run_id: str, event: LoggedEvent) -> dict[str, object]:
    return {
        "run_id": run_id,
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind,
        "body": event.body,
        "checksum": _checksum(run_id, event),
    }


def _checksum(run_id: str, event: LoggedEvent) -> str:
    return checksum_of(run_id, event.seq, float(event.at), event.kind, event.body)
