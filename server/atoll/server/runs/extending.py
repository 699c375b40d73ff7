"""Extends a run that has ended: the checks that may refuse it, and the event that makes it durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from sqlalchemy import Connection

from atoll.server.access.quotas import check_runs
from atoll.server.config.storage_settings import StorageSettings
from atoll.server.errors import ConflictError, InvalidRequestError, StorageError
from atoll.server.jobs import JobSpec, parse_job, to_run_policy
from atoll.server.jobs.section import MAX_ROUNDS
from atoll.server.rounds import ExtendRequested, RunState, RunStatus, initial, step
from atoll.server.runs.janitor import Janitor
from atoll.server.runs.journal import SqlJournal
from atoll.server.runs.performer import RunPerformer
from atoll.server.runs.required import check_required
from atoll.server.runs.services import Services
from atoll.server.runs.stepping import Entry, Played
from atoll.server.runs.submission import check_evaluator
from atoll.server.stores import event_log, models, runs
from atoll.wire.layout import Layout
from atoll.wire.messages import layout_from_proto
from atoll.wire.v1 import tensors_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Extended:
    """An extended run: the extension is durable, the work has not begun."""

    run: runs.Run
    spec: JobSpec
    layout: Layout
    entry: Entry

    @property
    def state(self) -> RunState:
        """The run after the extension."""
        return self.entry.after


class Extender:
    """Extends the runs of one server, one at a time.

    Args:
        services: stores, clock, observer.
        journal: stores the runs' logs.
        janitor: removes data of ended runs; paused while a run is extended.
        settings: how long the log and the optimiser state of an ended run are kept.
    """

    def __init__(self, services: Services, journal: SqlJournal, janitor: Janitor, settings: StorageSettings) -> None:
        self._services = services
        self._journal = journal
        self._janitor = janitor
        self._keep_ended_s = settings.keep_ended_s
        # weak references: nothing else holds a performer once the work on its run's end is done
        self._ending: WeakValueDictionary[str, RunPerformer] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    def note_end(self, run_id: str, performer: RunPerformer) -> None:
        """A run has ended; its performer still removes what only an active run needs."""
        self._ending[run_id] = performer

    async def extend(self, run_id: str, rounds: int, begin: Callable[[Extended], None]) -> None:
        """Make the extension of an ended run by ``rounds`` train rounds durable, then ``begin`` its work.

        Raises:
            RecordMissingError: no such run.
            InvalidRequestError: the number of rounds is out of range, or runs of this kind have a fixed number of
                rounds.
            ConflictError: the run has not ended, has failed, or lacks data that it needs to continue.
            CorruptDataError: its log is damaged.
        """
        task = asyncio.create_task(self._extend(run_id, rounds, begin), name=f"extend {run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)  # a caller that disconnects must not stop it halfway

    async def stop(self) -> None:
        """Wait until no run is being extended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _extend(self, run_id: str, rounds: int, begin: Callable[[Extended], None]) -> None:
        async with self._janitor.paused():
            ending = self._ending.get(run_id)
            if ending is not None:
                await ending.ended()
            found = await extended(self._services, self._journal, run_id, rounds, self._keep_ended_s)
            self._services.observer.stored(found.entry)
            begin(found)


async def extended(services: Services, journal: SqlJournal, run_id: str, rounds: int, keep_ended_s: float) -> Extended:
    """Check that an ended run can continue, and make its extension durable. Raises what ``Extender.extend`` raises."""
    run = await services.reader.run(runs.get, run_id)
    _check_status(run)
    _check_rounds(run, rounds)
    spec = parse_job(run.job_toml, f"the job of run {run.id}")
    _check_kind(run, spec)
    check_evaluator(services, spec)
    await services.reader.run(check_runs, run.project)
    await services.reader.run(check_required, spec, run.project)
    await _check_kept(services, run, keep_ended_s)
    before = await journal.resume(initial(run.id, to_run_policy(spec), run.initial_model))
    event, now = ExtendRequested(rounds), services.clock()
    result = step(before.state, event, now)
    entry = Entry(before.state, result.state, before.next_seq, (Played(event, now, True, result.effects),))
    await _append(services, journal, entry)
    return Extended(run, spec, layout_from_proto(tensors_pb2.Layout.FromString(run.layout)), entry)


def not_ended(run_id: str, status: RunStatus) -> ConflictError:
    """The refusal to extend a run that has not ended."""
    return ConflictError(
        "run.active",
        f"run {run_id} is {status}; only a run that has ended is extended",
        f"wait for its end (atoll run watch {run_id}), or end it first (atoll run cancel {run_id})",
    )


def _check_status(run: runs.Run) -> None:
    status = RunStatus(run.status)
    if not status.ended:
        raise not_ended(run.id, status)
    if status is RunStatus.FAILED:
        raise ConflictError(
            "run.failed",
            f"run {run.id} has failed, so it cannot be extended: {run.reason}",
            f"remove the cause, then {_anew(run)}",
        )


def _check_rounds(run: runs.Run, rounds: int) -> None:
    most = MAX_ROUNDS - run.rounds_released
    if not 1 <= rounds <= most:
        raise InvalidRequestError(
            "run.rounds",
            f"rounds = {rounds}: run {run.id} has released {run.rounds_released} models; allowed is 1 to {most}",
            "give the number of further rounds",
        )


def _check_kind(run: runs.Run, spec: JobSpec) -> None:
    if spec.statistics is not None:
        raise InvalidRequestError(
            "run.statistics",
            f"run {run.id} finds statistics: its number of rounds follows from its query",
            "submit a job with another query",
        )
    if spec.privacy is not None:
        raise InvalidRequestError(
            "run.private",
            f"run {run.id} is private: its noise, and what was promised to its participants, are for "
            f"{spec.job.rounds} rounds",
            f"{_anew(run)}: it is charged to the same ledger",
        )


async def _check_kept(services: Services, run: runs.Run, keep_ended_s: float) -> None:
    """Check that log, model and optimiser state still exist; the janitor removes them some days after a run's end."""
    aged = run.finished_at is not None and run.finished_at < services.clock() - keep_ended_s

    def work(connection: Connection) -> tuple[bool, models.Model | None]:
        return event_log.first_seq(connection, run.id) is not None, models.latest(connection, run.id)

    logged, newest = await services.reader.run(work)
    if aged or not logged:
        raise ConflictError(
            "run.aged",
            f"run {run.id} ended more than {keep_ended_s / 86_400:g} days ago: data that it needs to continue (event "
            "log, optimiser's state) is no longer kept",
            f"{_anew(run)}; for later runs raise [storage] keep_ended_days",
        )
    named = () if newest is None else (newest.blob, *(blob for _, blob in newest.optimiser_blobs))
    gone = [blob for blob in named if not await services.call(services.blobs.exists, blob)]
    if gone:
        raise ConflictError(
            "run.incomplete",
            f"run {run.id} cannot go on: its newest model or its optimiser's state is gone (blob {gone[0][:16]}), "
            "which can happen after disk damage or the restoration of a backup",
            _anew(run),
        )


def _anew(run: runs.Run) -> str:
    return (
        f"submit a new run that begins with its newest model (atoll run model {run.id} -o model.safetensors, "
        "and model.initial in the job)"
    )


async def _append(services: Services, journal: SqlJournal, entry: Entry) -> None:
    """Store the extension. If it was stored in spite of an error, the run continues."""
    try:
        await journal.append(entry)
    except StorageError:
        if await services.reader.run(event_log.next_seq, entry.run) != entry.next_seq:
            raise
        log.warning("run %s: its extension was stored in spite of an error", entry.run, exc_info=True)
