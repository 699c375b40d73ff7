"""Stores a run's events with their records in one transaction, and reads them back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from sqlalchemy import Connection

from atoll.server.config.storage_settings import KEEP_EVENTS
from atoll.server.errors import CorruptDataError
from atoll.server.ingest.coordinator_api import Disposition
from atoll.server.rounds import (
    Effect,
    Event,
    ExtendRequested,
    Finish,
    RecordMember,
    RecordRound,
    Rejected,
    RoundError,
    RoundKey,
    RoundState,
    RunState,
    step,
)
from atoll.server.runs.evaluators import Judgement
from atoll.server.runs.histories import record_learned
from atoll.server.runs.records import member_record, metrics_of, round_record
from atoll.server.runs.reporting import ReportRecorder
from atoll.server.runs.stepping import Also, Entry, Played
from atoll.server.stores import Reader, Snapshot, Writer, event_log, models, reports, rounds, runs, snapshots
from atoll.server.stores.errors import RecordMissingError
from atoll.server.stores.event_log import LoggedEvent

log = logging.getLogger(__name__)

SNAPSHOT_VERSION = 2
SNAPSHOT_EVENTS = 500
"""A snapshot is written at the end of a round if this many events have happened since the last one."""
_MOST_EVENTS = 8 * SNAPSHOT_EVENTS
"""A snapshot is written even within a round after this many events, which bounds the replay at a start."""

_RECORDED = (RecordRound, RecordMember, Finish)
"""Effects with records."""

# A field that this version does not know may change the meaning of others, so it is refused. Fields at their defaults
# are not written, so a newer version's field at its default, which stands for the old behaviour, can still be read
# here.
_STRICT = ConfigDict(extra="forbid")
_STATES: TypeAdapter[RunState | None] = TypeAdapter(RunState | None, config=_STRICT)  # config: unions only
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")], config=_STRICT)
_NEWER = "start the version of the server that wrote it"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A run as replayed from the database.

    Attributes:
        state: its state.
        next_seq: the sequence number of its next event.
        snapshot_seq: the sequence number of the snapshot that the replay began from; 0 if there was none.
    """

    state: RunState
    next_seq: int
    snapshot_seq: int = 0


def event_to_json(event: Event) -> str:
    """An event's body in the log: its kind, and all fields that are not at their defaults."""
    fields = _EVENTS.dump_json(event, exclude_defaults=True).decode()[1:]
    return f'{{"kind":"{event.kind}"{"," if len(fields) > 1 else ""}{fields}'


def event_from_json(body: str) -> Event:
    """The event of a log entry.

    Raises:
        ValueError: if this version does not know the event or one of its fields.
    """
    try:
        return _EVENTS.validate_json(body)
    except ValidationError as error:
        raise ValueError(_reason(error)) from error


def add_judgement(run: str, key: RoundKey, judgement: Judgement) -> Also:
    """Add the judgement of the operator's evaluator to the round's record."""

    def also(connection: Connection, _: tuple[Effect, ...]) -> None:
        row = rounds.get(connection, run, key.round, key.attempt)
        if row is None or judgement == Judgement():
            return
        metrics = tuple(sorted({**dict(row.metrics), **judgement.metrics}.items()))
        reason = "; ".join(part for part in (row.reason, judgement.failure) if part)
        rounds.put(connection, replace(row, metrics=metrics, reason=reason))

    return also


class SqlJournal:
    """Stores a run's events with the records of their effects, and snapshots of the run from time to time.

    Args:
        writer: the database's writer.
        reader: the database's readers.
        keep_events: number of newest events to keep of an active run, in addition to events that no snapshot covers.
        learns: whether histories of participants are kept; see ``Services``.
    """

    def __init__(self, writer: Writer, reader: Reader, *, keep_events: int = KEEP_EVENTS, learns: bool = True) -> None:
        self._writer = writer
        self._reader = reader
        self._keep_events = keep_events
        self._learns = learns
        self._snapshots: dict[str, int] = {}  # active run → sequence number of its newest snapshot

    async def append(self, entry: Entry) -> None:
        """See ``driver.Journal``."""
        due = self._is_due(entry)
        rows = [
            LoggedEvent(entry.first_seq + place, played.at, played.event.kind, event_to_json(played.event))
            for place, played in enumerate(entry.logged)
        ]

        def work(connection: Connection) -> None:
            event_log.append(connection, entry.run, rows)
            _record_extension(connection, entry)
            _record_status(connection, entry.before, entry.after)
            _record_all(connection, entry)
            _record_best(connection, entry.before, entry.after)
            policy = entry.after.policy
            if self._learns and not policy.secret_draw:  # other runs' draws and windows depend on these histories
                record_learned(connection, entry.played, refused_count=policy.straggler.refused_count)
            if due:
                self._put_snapshot(connection, entry)

        await self._writer.run(work)
        if entry.after.status.ended:
            self._snapshots.pop(entry.run, None)
        elif due:
            self._snapshots[entry.run] = entry.next_seq

    async def resume(self, first: RunState) -> Replayed:
        """Restore the run that began as ``first`` from its newest snapshot and the events since then.

        Raises:
            CorruptDataError: if they are damaged, or an event does not follow from the events before it.
        """
        found = await self._reader.run(lambda connection: replayed(connection, first))
        self._snapshots[first.run_id] = found.snapshot_seq
        return found

    def _is_due(self, entry: Entry) -> bool:
        """Whether a snapshot is due: at the end of a round, when the state is smallest, or within a long round."""
        if entry.after.status.ended or not entry.logged:
            return False
        since = entry.next_seq - self._snapshots.get(entry.run, 0)
        ends = any(isinstance(effect, RecordRound) for played in entry.played for effect in played.effects)
        return since >= (SNAPSHOT_EVENTS if ends else _MOST_EVENTS)

    def _put_snapshot(self, connection: Connection, entry: Entry) -> None:
        covered = snapshots.put(connection, snapshot_of(entry.after, entry.next_seq))
        event_log.prune(connection, entry.run, below=min(covered, entry.next_seq - self._keep_events))

    async def read(self, run: str, start: int) -> list[tuple[Event, float]]:
        """See ``driver.Journal``."""
        return await self._reader.run(lambda connection: list(logged_events(connection, run, start=start)))


def logged_events(connection: Connection, run: str, *, start: int = 0) -> Iterator[tuple[Event, float]]:
    """A run's events from sequence number ``start`` on, page by page, each with the epoch second of its step.

    Raises:
        CorruptDataError: if an event is missing, was altered on disk, or comes from a version that is not known here.
    """
    for logged in event_log.replay(connection, run, start=start):
        try:
            yield event_from_json(logged.body), logged.at
        except ValueError as error:
            raise CorruptDataError(
                "run.log",
                f"run {run}: event {logged.seq} of the log, {logged.kind!r}, cannot be read: {error}",
                _NEWER,
            ) from error


def snapshot_of(state: RunState, seq: int) -> Snapshot:
    """The snapshot of the state after the events before ``seq``."""
    return Snapshot.of(state.run_id, seq, SNAPSHOT_VERSION, _STATES.dump_json(state, exclude_defaults=True).decode())


def replayed(connection: Connection, first: RunState) -> Replayed:
    """Restore the run that began as ``first`` from its newest readable snapshot and the events since then.

    Raises:
        CorruptDataError: if the log is damaged, an event does not follow from the events before it, or this version can
            read neither the snapshots nor the events that they replace.
    """
    unknown = ""
    for snapshot in snapshots.newest_first(connection, first.run_id):
        state = _state_of(snapshot) if snapshot.whole else "it was changed on disk"
        if isinstance(state, RunState):
            return _played_on(connection, state, snapshot.seq)
        # then more of the log is replayed
        log.warning("run %s: its snapshot at event %d is left out: %s", snapshot.run_id, snapshot.seq, state)
        unknown = state if snapshot.whole else unknown
    if unknown and event_log.first_seq(connection, first.run_id):
        message = f"run {first.run_id}: its first events are gone, and this version cannot use its snapshots: {unknown}"
        raise CorruptDataError("run.log", message, _NEWER)
    return _played_on(connection, first, 0)


def _state_of(snapshot: Snapshot) -> RunState | str:
    """The state of an intact snapshot, or why this version cannot read it."""
    if snapshot.version != SNAPSHOT_VERSION:
        return f"it is of version {snapshot.version}, this program reads {SNAPSHOT_VERSION}"
    try:
        return _STATES.validate_json(snapshot.body) or "it is empty"
    except ValidationError as error:
        return f"it cannot be read: {_reason(error)}"


def _reason(error: ValidationError) -> str:
    """The location of the first fault, and the fault."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def _played_on(connection: Connection, state: RunState, start: int) -> Replayed:
    place = start
    try:
        for event, at in logged_events(connection, state.run_id, start=start):
            place += 1
            state = step(state, event, at).state
    except RoundError as error:
        raise CorruptDataError(
            "run.log",
            f"run {state.run_id}: event {place - 1} of the log does not follow from those before it: {error}",
            "start the version of the server that wrote it, or restore the data directory from a backup",
        ) from error
    return Replayed(state, place, start)


def _record_all(connection: Connection, entry: Entry) -> None:
    """Write the records that the events ask for, in order; one statement writes the rows of consecutive reports."""
    rows: list[reports.Report] = []
    for played in entry.played:
        recorded = any(isinstance(effect, _RECORDED) for effect in played.effects)
        if isinstance(played.also, ReportRecorder) and not recorded:
            if (row := played.also.row(played.effects)) is not None:
                rows.append(row)
        elif recorded or played.also is not None or isinstance(played.event, Rejected):
            reports.record_all(connection, rows)  # this record may read those rows
            rows = []
            _record(connection, entry.after, played)
    reports.record_all(connection, rows)


def _record(connection: Connection, after: RunState, played: Played) -> None:
    match played.event:
        case Rejected(key=key, participant=participant) if played.changed:
            # The acknowledged update is damaged or gone: its row must no longer say that it counts.
            dropped = Disposition.DROPPED.value
            reports.drop(connection, after.run_id, (key.round, key.attempt), participant, disposition=dropped)
        case _:
            pass
    for effect in played.effects:
        _record_effect(connection, after, effect, played.at)
    if played.also is not None:
        played.also(connection, played.effects)


def _record_effect(connection: Connection, after: RunState, effect: Effect, at: float) -> None:
    run = after.run_id
    match effect:
        case RecordRound():
            _record_round(connection, run, effect.round, after.policy.max_weight)
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


def _record_extension(connection: Connection, entry: Entry) -> None:
    """Record the new number of rounds; an extension is the first event of an ended run."""
    if any(isinstance(played.event, ExtendRequested) for played in entry.logged):
        total, released = entry.after.policy.rounds, entry.before.version
        runs.extend(connection, entry.run, rounds_total=total, released=released)


def _record_status(connection: Connection, before: RunState, after: RunState) -> None:
    """Record the status of a run that has not ended; ``Finish`` records its end."""
    moved = (before.status, before.pause_requested) != (after.status, after.pause_requested)
    if moved and not after.status.ended:
        reason = "pauses when this round is done" if after.pause_requested else after.reason
        runs.set_status(connection, after.run_id, after.status.value, reason=reason)


def _record_best(connection: Connection, before: RunState, after: RunState) -> None:
    """Record a new best model, which is then kept.

    Raises:
        RecordMissingError: if the model has no row, since it was charged without a model.
    """
    best = after.best
    if best is None or (before.best is not None and before.best.version == best.version):
        return
    model = models.of_version(connection, after.run_id, best.version)
    if model is None:
        raise RecordMissingError("model", f"{best.version} of run {after.run_id}")
    runs.set_best(connection, after.run_id, model.blob, best.value)


def _record_round(connection: Connection, run: str, ended: RoundState, max_weight: int) -> None:
    received = reports.of_attempt(connection, run, ended.key.round, ended.key.attempt)
    of_participant = {report.participant: report for report in received}
    rounds.put(connection, round_record(run, ended, metrics_of(ended.roster, max_weight)))
    rounds.put_members(
        connection,
        [member_record(run, ended, member, of_participant.get(member.participant)) for member in ended.roster],
    )
