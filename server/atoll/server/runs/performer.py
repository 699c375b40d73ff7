"""Performs the effects of one run: maps each effect to its handler. Performing an effect is idempotent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from atoll.server.jobs import JobSpec
from atoll.server.rounds import (
    Aggregate,
    ChargeAndStore,
    DeadlinePassed,
    DrawCohort,
    DropSpools,
    Effect,
    Finish,
    Fold,
    Invite,
    PrepareRound,
    Publish,
    RecordRound,
    RetryDue,
    RoundKey,
    RunState,
    StartDeadline,
    Started,
    StartRetry,
    Stop,
)
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.draw_effects import DrawEffects
from atoll.server.runs.drawing import CohortPool
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.effect_tasks import EffectTasks
from atoll.server.runs.end_effects import EndEffects
from atoll.server.runs.invitations import Invitations
from atoll.server.runs.pushing import Pusher
from atoll.server.runs.release_effects import ReleaseEffects
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.runs.services import Services
from atoll.server.runs.stepping import Answer, Work
from atoll.server.runs.sum_effects import SumEffects
from atoll.server.runs.tasks import TaskName
from atoll.wire.layout import Layout

_KINDS: dict[type[Effect], str] = {
    DrawCohort: "draw",
    PrepareRound: "prepare",
    ChargeAndStore: "charge",
    Publish: "publish",
    Fold: "fold",
}
"""Task names of effects that may need no task; other effects that fail at once are named after the effect."""


class RunPerformer:
    """Performs the effects of one run."""

    def __init__(
        self,
        driver: RunDriver,
        spec: JobSpec,
        layout: Layout,
        layout_message: bytes,
        services: Services,
        pool: CohortPool,
        privacy: RunPrivacy,
    ) -> None:
        self._driver = driver
        self._aggregator = Aggregator(driver, spec, layout, services, privacy)
        self._tasks = tasks = EffectTasks(driver, services)
        invitations = Invitations(driver.run, spec, layout, layout_message, services.blobs, privacy)
        self.members = Pusher(driver, invitations, services, tasks, tasks.post_soon)
        self._draws = DrawEffects(driver, spec, services, tasks, pool, privacy, self._aggregator)
        self._sums = SumEffects(driver, tasks, self._aggregator)
        self._releases = ReleaseEffects(driver, tasks, self._aggregator)
        self._ends = EndEffects(driver, tasks, pool, self._aggregator)
        # Receipts and member records need no work: the poster answers, and the journal has recorded.
        self._works: dict[type[Effect], Callable[[Any], None]] = {
            Invite: self.members.invite_all,
            Stop: self.members.stop,
            StartDeadline: lambda effect: self.members.deadline(effect, DeadlinePassed(effect.key)),
            StartRetry: self._start_retry,
            Fold: self._sums.fold,
            Aggregate: self._sums.aggregate,
            RecordRound: self._ends.record_round,
            DropSpools: self._ends.drop_spools,
            Finish: self._ends.finish,
        }

    def perform(self, effect: Effect, state: RunState) -> Answer | Work:
        """See ``driver.Performer``."""
        match effect:
            case DrawCohort():
                return self._draws.draw(effect)
            case PrepareRound():
                return self._draws.prepare(effect)
            case ChargeAndStore():
                return self._releases.charge(effect, state)
            case Publish():
                return self._releases.publish(effect)
            case _:
                return partial(self._works.get(type(effect), _nothing), effect)

    def begin(self, effect: Effect) -> None:
        """See ``driver.Performer``."""
        name = TaskName(_KINDS.get(type(effect), type(effect).__name__), getattr(effect, "key", None))
        try:
            made = self.perform(effect, self._driver.state)
            if isinstance(made, Answer):
                self._tasks.start(name, lambda: self._tasks.post(made))
            else:
                made()
        except Exception as error:  # noqa: BLE001 - the run's log goes on: its failure is an event like any other
            self._tasks.crashed(name, error)

    async def close(self) -> None:
        """See ``driver.Performer``."""
        await self._tasks.close()

    async def start_run(self) -> None:
        """Start a run that was submitted; returns when that is durable."""
        await self._tasks.answer(Started())

    async def ended(self) -> None:
        """Wait until the work on the run's end is done, which removes uploads, including those of a later round."""
        await self._tasks.ended(lambda _: True)

    @property
    def trouble(self) -> str:
        """The effect that is being retried and the reason, or the error that stopped the run; empty if neither applies.

        Disk, database or workers refuse an effect, or connected participants cannot do the job's rounds.
        """
        return self._tasks.trouble if self._driver.broken is None else str(self._driver.broken.detail)

    def server_metrics(self, key: RoundKey) -> Mapping[str, float]:
        """The evaluator's metrics of the round's model; empty if there are none (yet)."""
        return self._aggregator.server_metrics(key)

    def _start_retry(self, effect: StartRetry) -> None:
        self._tasks.after("retry", effect.delay_s, lambda: self._tasks.post_soon(RetryDue(effect.key)))


def _nothing(_: Effect) -> None:
    pass
