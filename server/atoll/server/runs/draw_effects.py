"""Performs the effects that begin a round: ``DrawCohort`` and ``PrepareRound``."""

from __future__ import annotations

import logging
from functools import partial

from atoll.server.jobs import JobSpec, report_window_of
from atoll.server.rounds import CohortDrawn, DrawCohort, PrepareRound, RoundPrepared
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.draw import Draw
from atoll.server.runs.drawing import ROUND, CohortPool, Waiting
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.effect_tasks import EffectTasks
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.runs.services import Services
from atoll.server.runs.stepping import Answer, Work
from atoll.server.runs.tasks import TaskName
from atoll.server.sampling.report_window import FixedReportWindow

log = logging.getLogger(__name__)

_DRAW = "the draw"


class DrawEffects:
    """Draws the cohorts of one run, and prepares its rounds."""

    def __init__(
        self,
        driver: RunDriver,
        spec: JobSpec,
        services: Services,
        tasks: EffectTasks,
        pool: CohortPool,
        privacy: RunPrivacy,
        aggregator: Aggregator,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._services = services
        self._tasks = tasks
        self._pool = pool
        self._privacy = privacy
        self._aggregator = aggregator

    def draw(self, effect: DrawCohort) -> Answer | Work:
        """Draw at once if no waiting is needed."""
        name = TaskName("draw", effect.key)
        waiting: Waiting | None = None
        if not self._tasks.under_way(name) and not self._services.room.shortage():
            drawn = self._drawn_or_waiting(effect)
            if isinstance(drawn, CohortDrawn):
                return Answer(drawn, cleanup=self._finish_draw)
            waiting = drawn
        return partial(self._draw_anew, name, effect, waiting)

    def _draw_anew(self, name: TaskName, effect: DrawCohort, waiting: Waiting | None) -> None:
        """Draw once enough participants are available; replaces any earlier task for the same draw."""
        self._finish_draw()
        self._tasks.start(name, lambda: self._wait_and_draw(effect, waiting), replaces=True)

    def _drawn_or_waiting(self, effect: DrawCohort) -> CohortDrawn | Waiting:
        return self._pool.draw(Draw(self._driver.run, effect, self._spec), self._unfit, self._privacy)

    async def _wait_and_draw(self, effect: DrawCohort, waiting: Waiting | None) -> None:
        """Draw once disk space and participants suffice.

        ``waiting`` is the pool's wait for them; None if the pool was not asked, since an earlier draw was under way or
        the disk was full.
        """
        try:
            await self._tasks.retrying("the next round", self._room_for_a_round)
            drawn = waiting or self._drawn_or_waiting(effect)
            if not isinstance(drawn, CohortDrawn):
                drawn = await self._tasks.retrying(_DRAW, drawn)
            await self._tasks.answer(drawn)
        finally:
            self._finish_draw()

    def _unfit(self, why: str) -> None:
        if why and not self._tasks.waits_for(_DRAW):
            log.warning("run %s: %s", self._driver.run, why)
        self._tasks.note_trouble(_DRAW, why)

    def _finish_draw(self) -> None:
        self._pool.finish_draw(self._driver.run)

    async def _room_for_a_round(self) -> None:
        await self._services.call(self._services.room.require, ROUND)

    def prepare(self, effect: PrepareRound) -> Answer | Work:
        """Set the window and the grid; answers at once unless the window is learned."""
        window = report_window_of(self._spec)
        if isinstance(window, FixedReportWindow):
            return Answer(self._prepared(effect, window.window_s))
        return partial(self._tasks.start, TaskName("prepare", effect.key), lambda: self._learn_and_prepare(effect))

    async def _learn_and_prepare(self, effect: PrepareRound) -> None:
        window_s = await self._tasks.retrying("preparing", lambda: self._pool.report_window_s(effect, self._spec))
        await self._tasks.answer(self._prepared(effect, window_s))

    def _prepared(self, effect: PrepareRound, window_s: float) -> RoundPrepared:
        grid = self._aggregator.grid(effect)
        return RoundPrepared(effect.key, window_s, self._services.clock() + window_s, grid)
