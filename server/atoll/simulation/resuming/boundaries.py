"""When a simulation with a folder commits, and what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sqlalchemy import Connection

from atoll.server.rounds import LateMode, Phase, RoundPrepared, RunStatus
from atoll.server.runs.services import Services
from atoll.server.stores import models
from atoll.server.telemetry.observer import Observer, StoredEvents
from atoll.simulation.attendance import Attendance
from atoll.simulation.resuming.kept_state import Boundary, put_boundary
from atoll.simulation.resuming.participant_folders import ParticipantFolders
from atoll.simulation.resuming.round_writer import RoundWriter

_OWNER = "the last commit"


class Boundaries(Observer):
    """Commits when a round has been opened, before anyone is invited, and when the run has ended or pauses.

    At these instants no task is in work and no update waits for its sum, so a commit needs neither. If late reports
    count in later rounds there is no such instant before the end, and a killed run begins anew.

    Args:
        attendance: who is connected.
        folders: participants' own.
        before: the commit that the simulation goes on from.
        at_rest: whether no task is in work; one of an abandoned round can be, and the next round commits then.
        fail: called with the error if a commit fails.

    Attributes:
        services: of the server; set before the first event.
        writer: of the server.
    """

    services: Services
    writer: RoundWriter

    def __init__(
        self,
        attendance: Attendance,
        folders: ParticipantFolders,
        before: Boundary | None,
        at_rest: Callable[[], bool],
        fail: Callable[[Exception], None],
    ) -> None:
        self._attendance = attendance
        self._folders = folders
        self._number = 0 if before is None else before.number
        self._began = time.perf_counter() - (0.0 if before is None else before.seconds)
        self._at_rest = at_rest
        self._fail = fail
        self._held: frozenset[str] = frozenset()

    @property
    def seconds(self) -> float:
        """How long the simulation has taken so far, in all processes that played it."""
        return time.perf_counter() - self._began

    def stored(self, stored: StoredEvents) -> None:
        """See ``Observer``."""
        state = stored.after
        ended = state.status.ended or state.status is RunStatus.PAUSED
        try:
            if ended or (_is_clean(stored) and self._at_rest()):
                self._commit(stored.run, ended=ended)
        except Exception as error:  # noqa: BLE001 - an observer must not raise; the simulation ends with it
            self._fail(error)

    def hold(self, run: str) -> None:
        """Keep the models of the last commit until the next."""
        self._hold(self._needed(self.writer.connection, run))

    def _commit(self, run: str, *, ended: bool) -> None:
        self._number += 1
        second = asyncio.get_running_loop().time()
        boundary = Boundary(self._number, run, second, self.seconds, ended, self._attendance.now())
        put_boundary(self.writer.connection, boundary)
        needed, unneeded = self._needed(self.writer.connection, run), self._held
        self.writer.commit()
        self._folders.begin(self._number)
        self._hold(needed)
        for blob in models.unnamed(self.writer.connection, unneeded - needed):
            self.services.blobs.set_aside(blob)  # it was to go before, while the last commit needed it
        self.services.blobs.sweep()

    def _hold(self, blobs: frozenset[str]) -> None:
        self._held = blobs
        self.services.leases.hold_only(_OWNER, blobs)

    @staticmethod
    def _needed(connection: Connection, run: str) -> frozenset[str]:
        newest = models.latest(connection, run)
        return frozenset() if newest is None else frozenset((newest.blob, *dict(newest.optimiser_blobs).values()))


def _is_clean(stored: StoredEvents) -> bool:
    """Whether a round was opened, and nothing of an earlier one can count any more."""
    live, late = stored.after.round, stored.after.policy.straggler.late.mode
    opened = any(isinstance(one.event, RoundPrepared) for one in stored.logged)
    return opened and live is not None and live.phase is Phase.OPEN and late is not LateMode.CARRY
