"""A run's events and what they record, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import Field, TypeAdapter
from sqlalchemy import Connection

from atoll.server.daemon.driver import Also, Entry
from atoll.server.daemon.histories import record_drawn, record_ended
from atoll.server.daemon.records import member_record, metrics_of, round_record
from atoll.server.rounds import (
    CohortDrawn,
    Effect,
    Event,
    Finish,
    RecordMember,
    RecordRound,
    RoundKey,
    RoundState,
    RunState,
)
from atoll.server.stores import Writer, event_log, reports, rounds, runs
from atoll.server.stores.event_log import LoggedEvent

_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def event_to_json(event: Event) -> str:
    """The body of an event as it lies in the log."""
    return _EVENTS.dump_json(event).decode()


def event_from_json(body: str) -> Event:
    """The event of a log entry.

    Raises:
        ValueError: if this version does not know it.
    """
    return _EVENTS.validate_json(body)


def add_metrics(run: str, key: RoundKey, metrics: Mapping[str, float]) -> Also:
    """Add metrics to a round's record."""

    def also(connection: Connection, _: tuple[Effect, ...]) -> None:
        row = rounds.get(connection, run, key.round, key.attempt)
        if row is not None and metrics:
            rounds.put(connection, replace(row, metrics=tuple(sorted({**dict(row.metrics), **metrics}.items()))))

    return also


class SqlJournal:
    """Stores a run's events with the records that their effects ask for."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def append(self, entry: Entry) -> None:
        """See ``driver.Journal``."""
        rows = [
            LoggedEvent(entry.first_seq + place, at, event.kind, event_to_json(event))
            for place, (event, at) in enumerate(entry.events)
        ]

        def work(connection: Connection) -> None:
            event_log.append(connection, entry.run, rows)
            for event, at in entry.events:
                if isinstance(event, CohortDrawn):
                    record_drawn(connection, event, at)
            for effect in entry.effects:
                _record(connection, entry, effect)
            for extra, caused in entry.also:
                extra(connection, caused)
            if any(event.kind in _STATUS_KINDS for event, _ in entry.events):
                _record_status(connection, entry.state)

        await self._writer.run(work)


_STATUS_KINDS = frozenset(
    {"started", "pause_requested", "resume_requested", "cancel_requested", "effect_failed", "published", "retry_due"}
)


def _record_status(connection: Connection, state: RunState) -> None:
    if not state.status.ended:
        reason = "pauses when this round is done" if state.pause_requested else state.reason
        runs.set_status(connection, state.run_id, state.status.value, reason=reason)


def _record(connection: Connection, entry: Entry, effect: Effect) -> None:
    match effect:
        case RecordRound():
            _record_round(connection, entry.run, effect.round)
            record_ended(connection, effect.round, effect.round.ended_at)
        case RecordMember():
            key, member = effect.key, effect.member
            rounds.amend_member(
                connection,
                entry.run,
                (key.round, key.attempt),
                member.participant,
                status=member.status.value,
                detail=member.detail,
            )
        case Finish():
            finished_at = entry.events[-1][1] if entry.events else None
            runs.set_status(connection, entry.run, effect.status.value, reason=effect.reason, finished_at=finished_at)
        case _:
            pass


def _record_round(connection: Connection, run: str, ended: RoundState) -> None:
    received = reports.of_attempt(connection, run, ended.key.round, ended.key.attempt)
    bytes_of = {report.participant: report.payload_bytes for report in received}
    rounds.put(connection, round_record(run, ended, metrics_of(ended.roster)))
    rounds.put_members(
        connection,
        [member_record(run, ended, member, bytes_of.get(member.participant, 0)) for member in ended.roster],
    )
