"""Performs the effects that sum a round: ``Fold`` and ``Aggregate``."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from atoll.server.errors import CorruptDataError, NotFoundError, ServerError
from atoll.server.ingest.gateway_nodes import GATEWAY
from atoll.server.ingest.node import FoldItem
from atoll.server.rounds import Aggregate, Fold, Rejected, RoundGrid
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.effect_tasks import UNUSABLE, EffectTasks
from atoll.server.runs.tasks import TaskName

log = logging.getLogger(__name__)

MAX_SUMS = 5
"""Maximum number of sums of a round that fail although each of its updates can be read afterwards. A process on a copy
of an aggregator's directory, which lacks the original's updates, may have answered for the aggregator."""
SUM_AGAIN_S = 3.0
"""Seconds between two of them."""
_UNREADABLE = (CorruptDataError, NotFoundError)


class SumEffects:
    """Adds the updates of one run's rounds, and leaves out unreadable ones."""

    def __init__(self, driver: RunDriver, tasks: EffectTasks, aggregator: Aggregator) -> None:
        self._driver = driver
        self._tasks = tasks
        self._aggregator = aggregator
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def fold(self, effect: Fold) -> None:
        """Start to fold the update, together with updates that waited for it, or let it wait for others."""
        live, update = self._driver.state.round, effect.update
        if live is None or live.key != effect.key or live.grid is None:
            return
        grid = live.grid
        name = TaskName("fold", effect.key, f"{update.participant} {update.key} {update.digest}")
        if due := self._aggregator.due(effect, grid):
            self._tasks.start(name, lambda: self._fold(effect, grid, due))
        else:
            self._tasks.note(name)

    async def _fold(self, effect: Fold, grid: RoundGrid, due: Sequence[FoldItem]) -> None:
        update = effect.update
        try:
            # Folds of one node would wait for each other, and block the threads that its arriving chunks need.
            async with self._locks[update.node]:
                await self._aggregator.fold(effect, grid, due)
        except UNUSABLE as error:
            await self._tasks.answer(Rejected(update.key, update.participant, str(error.detail)))
        except ServerError as error:
            level = logging.DEBUG if self._tasks.has_secret_draw else logging.INFO
            log.log(level, "run %s: %s is folded later: %s", self._driver.run, update.participant, error.logged)

    def aggregate(self, effect: Aggregate) -> None:
        """Sum the round; replaces a sum that is under way."""
        self._tasks.start(TaskName("aggregate", effect.key), lambda: self._aggregate(effect), replaces=True)

    async def _aggregate(self, effect: Aggregate) -> None:
        # The sum is read without a lock, so all folds into it must have ended.
        await self._tasks.ended(lambda name: name.kind == "fold" and name.key == effect.key)
        for left in reversed(range(MAX_SUMS)):
            try:
                done = await self._tasks.retrying("aggregation", lambda: self._aggregator.aggregate(effect))
            except ServerError as error:
                if await self._leave_out(effect, error):
                    return
                if not left or not isinstance(error, _UNREADABLE) or not _at_gateways(effect):
                    raise
                said = self._shown(error)
                log.warning("run %s: every update can be read; the sum is tried again: %s", self._driver.run, said)
                await asyncio.sleep(SUM_AGAIN_S)
            else:
                await self._tasks.answer(done)
                return

    async def _leave_out(self, effect: Aggregate, error: ServerError) -> bool:
        """Reject updates that can no longer be read, after the sum failed; returns False if all can be read."""
        damaged = await self._tasks.retrying("the look for damage", lambda: self._aggregator.unreadable(effect))
        if not damaged:
            return False
        log.error("run %s round %s: aggregation failed: %s", self._driver.run, effect.key, self._shown(error))
        for update, reason in damaged:
            await self._tasks.answer(Rejected(update.key, update.participant, reason))
        return True

    def _shown(self, error: ServerError) -> str:
        """An error for the log, without text that may name a member of a secret draw."""
        return error.detail.code if self._tasks.has_secret_draw else error.logged


def _at_gateways(effect: Aggregate) -> bool:
    """Whether gateways hold some of the updates."""
    updates = [term.update for term in effect.contributions if term.update is not None]
    return any(update.node.startswith(GATEWAY) for update in updates)
