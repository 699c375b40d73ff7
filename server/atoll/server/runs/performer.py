"""Performs the effects of one run: a table maps each effect to its handler. Performing an effect is idempotent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    Receipt,
    RecordMember,
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


@dataclass(frozen=True, slots=True)
class _Handler:
    """Performs effects of one type.

    Attributes:
        task: name of the task that does the work, or of the effect if there is none; part of a failed run's reason.
        perform: see ``driver.Performer.perform``.
    """

    task: str
    perform: Callable[[Any, RunState], Answer | Work]


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
        self._handlers: dict[type[Effect], _Handler] = {
            DrawCohort: _Handler("draw", lambda effect, _: self._draws.draw(effect)),
            PrepareRound: _Handler("prepare", lambda effect, _: self._draws.prepare(effect)),
            Invite: _Handler("Invite", _work(self.members.invite_all)),
            StartDeadline: _Handler("StartDeadline", _work(self._start_deadline)),
            Receipt: _Handler("Receipt", _work(_nothing)),
            Stop: _Handler("Stop", _work(self.members.stop)),
            RecordMember: _Handler("RecordMember", _work(_nothing)),
            Fold: _Handler("fold", _work(self._sums.fold)),
            Aggregate: _Handler("aggregate", _work(self._sums.aggregate)),
            ChargeAndStore: _Handler("charge", self._releases.charge),
            Publish: _Handler("publish", lambda effect, _: self._releases.publish(effect)),
            RecordRound: _Handler("retain", _work(self._ends.record_round)),
            DropSpools: _Handler("drop", _work(self._ends.drop_spools)),
            StartRetry: _Handler("StartRetry", _work(self._start_retry)),
            Finish: _Handler("finish", _work(self._ends.finish)),
        }

    def perform(self, effect: Effect, state: RunState) -> Answer | Work:
        """See ``driver.Performer``."""
        made = self._handlers[type(effect)].perform(effect, state)
        return made if isinstance(made, Answer) else partial(self._start, effect, made)

    def begin(self, effect: Effect) -> None:
        """See ``driver.Performer``."""
        self._start(effect, partial(self._perform_and_start, effect))

    def _perform_and_start(self, effect: Effect) -> None:
        made = self._handlers[type(effect)].perform(effect, self._driver.state)
        if isinstance(made, Answer):
            self._tasks.start(self._name_of(effect), lambda: self._tasks.post(made))
        else:
            made()

    def _start(self, effect: Effect, work: Work) -> None:
        """Start an effect's work. Each effect that is not answered at once passes here when its event is durable."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the run's log goes on: its failure is an event like any other
            self._tasks.crashed(self._name_of(effect), error)

    def _name_of(self, effect: Effect) -> TaskName:
        return TaskName(self._handlers[type(effect)].task, getattr(effect, "key", None))

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

    def _start_deadline(self, effect: StartDeadline) -> None:
        self.members.deadline(effect, DeadlinePassed(effect.key))

    def _start_retry(self, effect: StartRetry) -> None:
        self._tasks.after("retry", effect.delay_s, lambda: self._tasks.post_soon(RetryDue(effect.key)))


def _work(begin: Callable[[Any], None]) -> Callable[[Any, RunState], Work]:
    """The handler of effects that never have an answer at once."""
    return lambda effect, _: partial(begin, effect)


def _nothing(_: Effect) -> None:
    pass
