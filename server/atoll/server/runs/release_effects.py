"""Performs the effects that release a round's result: ``ChargeAndStore`` and ``Publish``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from atoll.server.rounds import ChargeAndStore, Charged, Metrics, Publish, Published, RunPolicy, RunState, SumLost
from atoll.server.rounds.judging import SERVER_METRIC
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.candidates import live_round
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.effect_tasks import UNUSABLE, EffectTasks
from atoll.server.runs.evaluators import Judgement
from atoll.server.runs.journal import add_judgement
from atoll.server.runs.records import metrics_of
from atoll.server.runs.stepping import Answer, Work
from atoll.server.runs.tasks import TaskName
from atoll.text.figures import counted


class ReleaseEffects:
    """Charges and publishes the results of one run's rounds."""

    def __init__(self, driver: RunDriver, tasks: EffectTasks, aggregator: Aggregator) -> None:
        self._driver = driver
        self._tasks = tasks
        self._aggregator = aggregator

    def charge(self, effect: ChargeAndStore, state: RunState) -> Answer | Work:
        """Charge and store the result; first remake a candidate that a restart has lost."""
        if self._aggregator.can_charge(effect):
            return Answer(_charged(effect, state), self._aggregator.charge(effect, state))
        return partial(self._tasks.start, TaskName("charge", effect.key), lambda: self._make_again_and_charge(effect))

    async def _make_again_and_charge(self, effect: ChargeAndStore) -> None:
        try:
            await self._tasks.retrying("the release", self._aggregator.make_again)
            state = self._driver.state
            also = self._aggregator.charge(effect, state)
        except UNUSABLE:
            lost = await self._tasks.retrying("the look for damage", self._aggregator.lost)
            if not lost:
                raise
            reason = f"{counted(len(lost), 'update')} of its sum cannot be read any more"
            await self._tasks.answer(SumLost(effect.key, reason, tuple(lost)))
        else:
            await self._tasks.answer(_charged(effect, state), also)

    def publish(self, effect: Publish) -> Answer | Work:
        """Publish the released model, after the operator's evaluator has judged it, if the job names one."""
        if self._aggregator.is_judged(effect):
            return partial(self._tasks.start, TaskName("publish", effect.key), lambda: self._judge_and_publish(effect))
        return Answer(Published(effect.key))

    async def _judge_and_publish(self, effect: Publish) -> None:
        judgement = await self._judged(effect)
        noted = add_judgement(self._driver.run, effect.key, judgement)
        deciding = _deciding(self._driver.state.policy, judgement.metrics)
        await self._tasks.answer(Published(effect.key, deciding), noted)

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


def _charged(effect: ChargeAndStore, state: RunState) -> Charged:
    """The charge, with those members' metrics that judge the model which the round handed out."""
    policy = state.policy
    if all(name.startswith(SERVER_METRIC) for name in policy.deciding_metrics):
        return Charged(effect.key)
    return Charged(effect.key, _deciding(policy, metrics_of(live_round(state).roster, policy.max_weight)))


def _deciding(policy: RunPolicy, found: Mapping[str, float]) -> Metrics:
    return tuple(sorted((name, found[name]) for name in policy.deciding_metrics if name in found))
