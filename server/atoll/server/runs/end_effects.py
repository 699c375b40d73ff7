"""Performs the effects that end a round or the run: ``RecordRound``, ``DropSpools`` and ``Finish``."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any

from atoll.server.errors import ServerError
from atoll.server.rounds import DropSpools, Finish, RecordRound
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.drawing import CohortPool
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.effect_tasks import EffectTasks
from atoll.server.runs.tasks import TaskName

log = logging.getLogger(__name__)


class EndEffects:
    """Removes the data that one run's ended rounds, and finally the run itself, no longer need."""

    def __init__(self, driver: RunDriver, tasks: EffectTasks, pool: CohortPool, aggregator: Aggregator) -> None:
        self._driver = driver
        self._tasks = tasks
        self._pool = pool
        self._aggregator = aggregator

    def record_round(self, _: RecordRound) -> None:
        """Remove models that need not be kept; the journal has recorded the round."""
        self._tasks.start(TaskName("retain"), self._retain)

    async def _retain(self) -> None:
        await self._tidy("old models", self._aggregator.retain())

    def drop_spools(self, effect: DropSpools) -> None:
        """Remove the uploads and sums of rounds that are over."""
        self._tasks.start(TaskName("drop", effect.through), lambda: self._drop(effect))

    async def _drop(self, effect: DropSpools) -> None:
        """End the work on these rounds and delete their uploads."""
        kinds = ("fold", "aggregate", "charge")
        await self._tasks.end(lambda name: name.kind in kinds and name.key is not None and name.key <= effect.through)
        await self._tidy("uploads", self._aggregator.drop(effect))

    def finish(self, effect: Finish) -> None:
        """End the run's work, and remove data that only an active run needs."""
        self._tasks.start(TaskName("finish"), lambda: self._finish(effect))

    async def _finish(self, effect: Finish) -> None:
        log.info("run %s has %s: %s", self._driver.run, effect.status, effect.reason, extra={"run": self._driver.run})
        self._tasks.cancel_timers()
        tidying = ("publish", "drop", "retain")
        await self._tasks.end(lambda name: name.kind not in tidying)
        await self._tasks.ended(lambda _: True)
        self._pool.forget(self._driver.run)
        await self._tidy("models that were not released", self._aggregator.discard_candidates())
        await self._tidy("uploads", self._aggregator.drop_all())

    async def _tidy(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Remove data that is no longer needed. If that fails, the run continues and the next sweep removes it."""
        try:
            await work
        except (ServerError, OSError) as error:
            log.warning("run %s: %s not removed: %s", self._driver.run, what, error, extra={"run": self._driver.run})
