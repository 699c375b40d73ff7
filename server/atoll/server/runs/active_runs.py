"""The runs of a server that have not ended, and which participants work for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.jobs import Fragments, JobSpec
from atoll.server.jobs.refusals import has_secret_draw
from atoll.server.rounds import Phase, Roster, RunStatus
from atoll.server.runs.cohort import takes_unary
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.performer import RunPerformer
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.runs.services import Services
from atoll.wire.layout import Layout

_RESTING = frozenset({RunStatus.PAUSED, *(status for status in RunStatus if status.ended)})
_BEING_RELEASED = (Phase.CLOSING, Phase.AGGREGATED, Phase.CHARGED)
_AT_WORK = (Phase.SAMPLED, Phase.OPEN)


@dataclass(eq=False)
class ActiveRun:
    """A run that has not ended."""

    driver: RunDriver
    performer: RunPerformer
    spec: JobSpec
    layout: Layout
    fragments: Fragments
    privacy: RunPrivacy
    project: str = DEFAULT_PROJECT


class ActiveRuns:
    """The active runs by id. Implements ``drawing.OtherRuns`` for each run.

    Args:
        services: its sessions are told how many participants the runs need.
        ended: called with id and performer of a run that has ended.
    """

    def __init__(self, services: Services, ended: Callable[[str, RunPerformer], None]) -> None:
        self._services = services
        self._ended = ended
        self._by_id: dict[str, ActiveRun] = {}
        self._rosters: dict[str, Roster] = {}
        self._moves = asyncio.Event()

    def get(self, run_id: str) -> ActiveRun | None:
        """An active run; None for others."""
        return self._by_id.get(run_id)

    def ids(self) -> list[str]:
        """Their ids."""
        return list(self._by_id)

    def all(self) -> list[ActiveRun]:
        """All active runs, in the order in which they began or were resumed."""
        return list(self._by_id.values())

    def add(self, run_id: str, active: ActiveRun) -> None:
        """Add a run that begins or is resumed."""
        self._by_id[run_id] = active
        self._note_need(active.driver)

    def moved(self, driver: RunDriver) -> None:
        """Note that a run's state has changed; remove the run once it has ended."""
        self._moves.set()
        before, now = self._rosters.get(driver.run, Roster()), _roster_of(driver)
        self._rosters[driver.run] = now
        self._note_need(driver)
        if driver.state.status.ended:
            ended = self._by_id.pop(driver.run, None)
            if ended is not None:
                self._ended(driver.run, ended.performer)
            del self._rosters[driver.run]
        self._services.sessions.touch(now.changed_since(before))

    async def settled(self) -> None:
        """Wait until no running round is between last report and release: a restart there would repeat a sum."""
        while any(_is_being_released(active.driver) for active in self._by_id.values()):
            self._moves.clear()
            await self._moves.wait()

    def busy(self, apart_from: str, among: Collection[str] | None = None) -> set[str]:
        """See ``drawing.OtherRuns``."""
        found: set[str] = set()
        for run_id, active in self._by_id.items():
            if run_id != apart_from:
                found.update(_roster_of(active.driver).outstanding_among(among))
        return found

    def secret(self, apart_from: str) -> str:
        """See ``drawing.OtherRuns``."""
        own = self._by_id.get(apart_from)
        for run_id, active in self._by_id.items():
            other = own is not None and active.project != own.project
            live = None if other or run_id == apart_from or active.driver.stopped else active.driver.state.round
            if live is not None and live.phase in _AT_WORK and has_secret_draw(active.spec):
                return run_id
        return ""

    def _note_need(self, driver: RunDriver) -> None:
        """Tell pace steering how many participants without a stream the run wants to draw from."""
        active = self._by_id.get(driver.run)
        draws = active is not None and takes_unary(active.spec) and driver.state.status not in _RESTING
        cohort = None if active is None or driver.stopped or not draws else active.spec.cohort
        wanted = 0 if cohort is None else max(cohort.min_available, cohort.invited)
        project = DEFAULT_PROJECT if active is None else active.project
        self._services.sessions.pace.need(driver.run, wanted, project)


def _is_being_released(driver: RunDriver) -> bool:
    live = driver.state.round
    runs_on = driver.state.status is RunStatus.RUNNING and not driver.stopped
    return runs_on and live is not None and live.phase in _BEING_RELEASED


def _roster_of(driver: RunDriver) -> Roster:
    """The members of the run's round; empty once the run takes no more events."""
    live = driver.state.round
    return Roster() if driver.stopped or driver.state.status.ended or live is None else live.roster
