"""A run's events and what they record, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field, TypeAdapter
from sqlalchemy import Connection

from atoll.server.daemon.driver import Also, Entry, Played
from atoll.server.daemon.evaluators import Judgement
from atoll.server.daemon.histories import record_drawn, record_ended
from atoll.server.daemon.records import member_record, metrics_of, round_record
from atoll.server.errors import CorruptDataError
from atoll.server.rounds import (
    CohortDrawn,
    Effect,
    Event,
    Finish,
    RecordMember,
    RecordRound,
    RoundError,
    RoundKey,
    RoundState,
    RunState,
    step,
)
from atoll.server.stores import Reader, Writer, event_log, reports, rounds, runs
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


def add_judgement(run: str, key: RoundKey, judgement: Judgement) -> Also:
    """Add what the operator's evaluator said of a round's model, or why it said nothing, to the round's record."""

    def also(connection: Connection, _: tuple[Effect, ...]) -> None:
        row = rounds.get(connection, run, key.round, key.attempt)
        if row is None or judgement == Judgement():
            return
        metrics = tuple(sorted({**dict(row.metrics), **judgement.metrics}.items()))
        reason = "; ".join(part for part in (row.reason, judgement.failure) if part)
        rounds.put(connection, replace(row, metrics=metrics, reason=reason))

    return also


class SqlJournal:
    """Stores a run's events with the records that their effects ask for."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def append(self, entry: Entry) -> None:
        """See ``driver.Journal``."""
        rows = [
            LoggedEvent(entry.first_seq + place, played.at, played.event.kind, event_to_json(played.event))
            for place, played in enumerate(entry.logged)
        ]

        def work(connection: Connection) -> None:
            event_log.append(connection, entry.run, rows)
            _record_status(connection, entry.before, entry.after)
            for played in entry.played:
                _record(connection, entry.after, played)

        await self._writer.run(work)

    async def read(self, run: str, start: int) -> list[tuple[Event, float]]:
        """See ``driver.Journal``."""
        return await self._reader.run(lambda connection: list(logged_events(connection, run, start=start)))


def logged_events(connection: Connection, run: str, *, start: int = 0) -> Iterator[tuple[Event, float]]:
    """A run's events from place ``start`` on, each with the epoch second that it was stepped at, page by page.

    Raises:
        CorruptDataError: if one is missing, was changed on disk, or is of a version that is not known here.
    """
    for logged in event_log.replay(connection, run, start=start):
        try:
            yield event_from_json(logged.body), logged.at
        except ValueError as error:
            raise CorruptDataError(
                "run.log",
                f"run {run}: event {logged.seq} of the log, {logged.kind!r}, cannot be read: {error}",
                "start the version of the server that wrote it",
            ) from error


def replayed(connection: Connection, state: RunState) -> tuple[RunState, int]:
    """A run as its log leaves it, from how it began, and the place of the next event.

    Raises:
        CorruptDataError: if the log is damaged, or tells of what the rules do not allow.
    """
    place = 0
    try:
        for place, (event, at) in enumerate(logged_events(connection, state.run_id), start=1):  # noqa: B007 - the last
            state = step(state, event, at).state
    except RoundError as error:
        raise CorruptDataError(
            "run.log",
            f"run {state.run_id}: event {place - 1} of the log does not follow from those before it: {error}",
            "start the version of the server that wrote it, or restore the data directory from a back-up",
        ) from error
    return state, place


def _record(connection: Connection, after: RunState, played: Played) -> None:
    if isinstance(played.event, CohortDrawn) and played.changed:
        record_drawn(connection, played.event, played.at)
    for effect in played.effects:
        _record_effect(connection, after, effect, played.at)
    if played.also is not None:
        played.also(connection, played.effects)


def _record_effect(connection: Connection, after: RunState, effect: Effect, at: float) -> None:
    run = after.run_id
    match effect:
        case RecordRound():
            _record_round(connection, run, effect.round, after.policy.max_weight)
            record_ended(connection, effect.round, effect.round.ended_at)
        case RecordMember():
            key, member = effect.key, effect.member
            rounds.amend_member(
                connection,
                run,
                (key.round, key.attempt),
                member.participant,
                status=member.status.value,
                detail=member.detail,
            )
        case Finish():
            runs.set_status(connection, run, effect.status.value, reason=effect.reason, finished_at=at)
        case _:
            pass


def _record_status(connection: Connection, before: RunState, after: RunState) -> None:
    """How a run stands that goes on; its end is recorded with ``Finish``."""
    moved = (before.status, before.pause_requested) != (after.status, after.pause_requested)
    if moved and not after.status.ended:
        reason = "pauses when this round is done" if after.pause_requested else ""
        runs.set_status(connection, after.run_id, after.status.value, reason=reason)


def _record_round(connection: Connection, run: str, ended: RoundState, max_weight: int) -> None:
    received = reports.of_attempt(connection, run, ended.key.round, ended.key.attempt)
    bytes_of = {report.participant: report.payload_bytes for report in received}
    rounds.put(connection, round_record(run, ended, metrics_of(ended.roster, max_weight)))
    rounds.put_members(
        connection,
        [member_record(run, ended, member, bytes_of.get(member.participant, 0)) for member in ended.roster],
    )
