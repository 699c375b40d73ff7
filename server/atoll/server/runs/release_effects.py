"""Performs the effects that release a round's result: ``ChargeAndStore`` and ``Publish``."""

from __future__ import annotations

import asyncio
from functools import partial

from sqlalchemy import Connection

from atoll.server.jobs import JobSpec
from atoll.server.rounds import ChargeAndStore, Charged, Effect, Publish, Published, RunState, SumLost
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.effect_tasks import UNUSABLE, EffectTasks
from atoll.server.runs.evaluators import SERVER_METRIC, Judgement
from atoll.server.runs.journal import add_judgement, keep_best
from atoll.server.runs.stepping import Answer, Work
from atoll.server.runs.tasks import TaskName
from atoll.text.figures import counted


class ReleaseEffects:
    """Charges and publishes the results of one run's rounds."""

    def __init__(self, driver: RunDriver, spec: JobSpec, tasks: EffectTasks, aggregator: Aggregator) -> None:
        self._driver = driver
        self._spec = spec
        self._tasks = tasks
        self._aggregator = aggregator

    def charge(self, effect: ChargeAndStore, state: RunState) -> Answer | Work:
        """Charge and store the result; a candidate that a restart has lost is made again first."""
        if self._aggregator.can_charge(effect):
            return Answer(Charged(effect.key), self._aggregator.charge(effect, state))
        return partial(self._tasks.start, TaskName("charge", effect.key), lambda: self._make_again_and_charge(effect))

    async def _make_again_and_charge(self, effect: ChargeAndStore) -> None:
        try:
            await self._tasks.retrying("the release", self._aggregator.make_again)
            also = self._aggregator.charge(effect, self._driver.state)
        except UNUSABLE:
            lost = await self._tasks.retrying("the look for damage", self._aggregator.lost)
            if not lost:
                raise
            reason = f"{counted(len(lost), 'update')} of its sum cannot be read any more"
            await self._tasks.answer(SumLost(effect.key, reason, tuple(lost)))
        else:
            await self._tasks.answer(Charged(effect.key), also)

    def publish(self, effect: Publish) -> Answer | Work:
        """Publish the released model, once the operator's evaluator has judged it, if there is one."""
        if self._aggregator.is_judged(effect):
            return partial(self._tasks.start, TaskName("publish", effect.key), lambda: self._judge_and_publish(effect))
        return Answer(Published(effect.key))

    async def _judge_and_publish(self, effect: Publish) -> None:
        judgement = await self._judged(effect)
        run, retention = self._driver.run, self._spec.retention
        noted = add_judgement(run, effect.key, judgement)
        value = judgement.metrics.get(f"{SERVER_METRIC}{retention.best}")
        best = keep_best(run, effect.digest, value, highest=retention.best_is == "highest")

        def also(connection: Connection, effects: tuple[Effect, ...]) -> None:
            noted(connection, effects)
            best(connection, effects)

        await self._tasks.answer(Published(effect.key), also)

    async def _judged(self, effect: Publish) -> Judgement:
        """The judgement of the operator's evaluator; a cancellation does not wait for it."""
        judging = asyncio.create_task(self._aggregator.evaluate(effect))
        unwanted = asyncio.create_task(self._cancel_requested())
        try:
            await asyncio.wait({judging, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            return judging.result() if judging.done() else Judgement(failure="the run was cancelled meanwhile")
        finally:
            judging.cancel()
            unwanted.cancel()
            await asyncio.gather(judging, unwanted, return_exceptions=True)

    async def _cancel_requested(self) -> None:
        while self._driver.state.cancel_requested is None:
            changed = self._driver.changed
            await changed.wait()
            if changed is self._driver.changed:  # the server is stopping, and this task with it
                await asyncio.Event().wait()
