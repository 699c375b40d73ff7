"""The instants and the content of commits of a simulation with a folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Connection

from atoll.server.rounds import Phase, RoundPrepared, RunState, RunStatus
from atoll.server.runs.services import Services
from atoll.server.stores import models
from atoll.server.telemetry.observer import Observer, StoredEvents
from atoll.simulation.attendance import Attendance
from atoll.simulation.resuming.kept_state import Boundary, put_boundary
from atoll.simulation.resuming.round_writer import RoundWriter
from atoll.simulation.resuming.tasks_in_work import TasksInWork

_OWNER = "the last commit"


class Participants(Protocol):
    """The participants' side of a commit."""

    attendance: Attendance

    @property
    def at_rest(self) -> bool:
        """Whether no report is being handed in. A report of an abandoned round can be; then the next round commits."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the simulation ends with an error, so that a later call must repeat the current events."""
        ...

    def in_work(self, state: RunState) -> TasksInWork:
        """The running tasks."""
        ...

    def committed(self, tasks: TasksInWork) -> None:
        """Note that a commit with these tasks was made."""
        ...


class Boundaries(Observer):
    """Commits when a round has been opened, before anyone is invited, and when the run has ended or pauses.

    At these instants no task of the round is running. If late reports are carried, tasks of earlier rounds are running
    and updates are waiting; a commit lists them, to be recomputed.

    Args:
        participants: the participants' side of a commit.
        before: the commit from which the simulation resumes.
        fail: called with the error if a commit fails.

    Attributes:
        services: of the server; set before the first event.
        writer: of the server.
    """

    services: Services
    writer: RoundWriter

    def __init__(self, participants: Participants, before: Boundary | None, fail: Callable[[Exception], None]) -> None:
        self._participants = participants
        self._number = 0 if before is None else before.number
        self._began = time.perf_counter() - (0.0 if before is None else before.seconds)
        self._fail = fail
        self._held: frozenset[str] = frozenset()

    @property
    def seconds(self) -> float:
        """Real duration of the simulation so far, over all its processes."""
        return time.perf_counter() - self._began

    def stored(self, stored: StoredEvents) -> None:
        """See ``Observer``."""
        state = stored.after
        if self._participants.has_failed:
            return
        ended = state.status.ended or state.status is RunStatus.PAUSED
        try:
            if ended or (_has_opened(stored) and self._participants.at_rest):
                self._commit(state, ended=ended)
        except Exception as error:  # noqa: BLE001 - an observer must not raise; the simulation ends with it
            self._fail(error)

    def hold(self, run: str, tasks: TasksInWork) -> None:
        """Keep the models of the last commit until the next."""
        self._hold(self._needed(self.writer.connection, run) | tasks.models)

    def _commit(self, state: RunState, *, ended: bool) -> None:
        self._number += 1
        run, second = state.run_id, asyncio.get_running_loop().time()
        boundary = Boundary(self._number, run, second, self.seconds, ended, self._participants.attendance.now())
        tasks = self._participants.in_work(state)
        put_boundary(self.writer.connection, boundary, tasks)
        needed, unneeded = self._needed(self.writer.connection, run) | tasks.models, self._held
        self.writer.commit()
        self._participants.committed(tasks)
        self._hold(needed)
        for blob in models.unnamed(self.writer.connection, unneeded - needed):
            self.services.blobs.set_aside(blob)  # it was to be removed earlier, while the last commit still needed it
        self.services.blobs.sweep()

    def _hold(self, blobs: frozenset[str]) -> None:
        self._held = blobs
        self.services.leases.hold_only(_OWNER, blobs)

    @staticmethod
    def _needed(connection: Connection, run: str) -> frozenset[str]:
        newest = models.latest(connection, run)
        return frozenset() if newest is None else frozenset((newest.blob, *dict(newest.optimiser_blobs).values()))


def _has_opened(stored: StoredEvents) -> bool:
    """Whether a round was opened."""
    live = stored.after.round
    opened = any(isinstance(one.event, RoundPrepared) for one in stored.logged)
    return opened and live is not None and live.phase is Phase.OPEN
