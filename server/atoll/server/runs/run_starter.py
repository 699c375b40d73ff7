"""Begins the work of runs: of new and extended ones, and of those that a restarted server resumes."""

from __future__ import annotations

import logging
import time

from atoll.server.errors import CorruptDataError
from atoll.server.jobs import JobFileError, JobSpec, fragments_of, parse_job, to_run_policy
from atoll.server.rounds import Phase, ResumeRequested, RunState, RunStatus, initial
from atoll.server.runs.active_runs import ActiveRun, ActiveRuns
from atoll.server.runs.drawing import CohortPool
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.journal import SqlJournal
from atoll.server.runs.performer import RunPerformer
from atoll.server.runs.private.budgets import Budgets
from atoll.server.runs.private.promise import find_promise
from atoll.server.runs.run_privacy import Promise
from atoll.server.runs.services import Services
from atoll.server.stores import event_log, runs
from atoll.wire.layout import Layout
from atoll.wire.messages import layout_from_proto
from atoll.wire.v1 import tensors_pb2

log = logging.getLogger(__name__)

_UNDER_WAY = (Phase.SAMPLED, Phase.OPEN, Phase.CLOSING, Phase.AGGREGATED)
"""Phases in which a round has reserved its cost, which is charged at its end."""


class RunStarter:
    """Makes driver, performer and privacy of a run, and starts them.

    Args:
        services: stores, clock, sessions.
        active: where the runs are entered.
        journal: stores the runs' logs.
        budgets: privacy that the runs reserve.
        restored_at: epoch second at which a backup was restored; 0 for never.
    """

    def __init__(
        self, services: Services, active: ActiveRuns, journal: SqlJournal, budgets: Budgets, restored_at: float
    ) -> None:
        self._services = services
        self._active = active
        self._journal = journal
        self._budgets = budgets
        self._restored_at = restored_at
        self._pools: dict[str, CohortPool] = {}

    def begin(
        self,
        run: runs.Run,
        spec: JobSpec,
        layout: Layout,
        state: RunState,
        next_seq: int,
        *,
        promise: Promise,
        resumed: bool = False,
    ) -> ActiveRun:
        """Begin a run's work from ``state``; ``resumed`` if its round began before a restart of the server."""
        services = self._services
        driver = RunDriver(state, next_seq, self._journal, services.clock, self._moved, services.observer.stored)
        privacy = promise.privacy(driver, services, self._budgets, spec)
        spec = spec.seeded(run.seed)
        pool = self.pool_of(run.project)
        performer = RunPerformer(driver, spec, layout, run.layout, services, pool, privacy)
        active = ActiveRun(driver, performer, spec, layout, fragments_of(spec, layout), privacy, run.project)
        self._active.add(run.id, active)
        if resumed:
            if not services.members_stay:
                performer.members.expect_back()
            if state.round is not None and state.round.phase in _UNDER_WAY:
                privacy.hold()
        driver.start(performer)
        return active

    async def resume(self, run: runs.Run) -> None:
        """Resume a run that had not ended when the server stopped, within its round.

        Raises:
            CorruptDataError: if its log or its row is damaged.
        """
        spec = _stored_job(run)
        layout = layout_from_proto(tensors_pb2.Layout.FromString(run.layout))
        first = initial(run.id, to_run_policy(spec), run.initial_model)
        found = await self._journal.resume(first)
        log.info("run %s resumes: %s", run.id, found.state.status, extra={"run": run.id})
        promise = await self._services.reader.run(find_promise, run.id, spec)
        if spec.privacy is not None and await self._is_uncompared(run):
            self._budgets.block(run.id, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._restored_at)))
        active = self.begin(run, spec, layout, found.state, found.next_seq, promise=promise, resumed=True)
        if found.state.status is RunStatus.SUBMITTED:
            await active.performer.start_run()

    async def _is_uncompared(self, run: runs.Run) -> bool:
        """Whether the run's ledger was restored from a backup and no operator has resumed the run since."""
        if run.created_at >= self._restored_at:
            return False
        kind, since = ResumeRequested().kind, self._restored_at
        return not await self._services.reader.run(event_log.has_kind, run.id, kind, since=since)

    def pool_of(self, project: str) -> CohortPool:
        """The participants from which the runs of a project draw."""
        if project not in self._pools:
            self._pools[project] = CohortPool(self._services, self._active, project)
        return self._pools[project]

    def has_drawn(self, participant: str) -> bool:
        """Whether a draw that is not yet in its run's state includes this participant."""
        return any(pool.has_drawn(participant) for pool in self._pools.values())

    def _moved(self, driver: RunDriver) -> None:
        self._active.moved(driver)
        self._budgets.follow(driver.state)


def _stored_job(run: runs.Run) -> JobSpec:
    """The job of a stored run, which some version of the server accepted."""
    try:
        return parse_job(run.job_toml, f"the job of run {run.id}")
    except JobFileError as error:
        raise CorruptDataError(
            "run.job",
            f"this version cannot read {error.detail.message}",
            "start the version of the server that accepted it, or a later one",
        ) from error
