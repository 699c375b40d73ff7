"""Performs the effects of one run. Performing an effect again changes nothing more."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from atoll.server.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    ServerError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from atoll.server.ingest.node import FoldItem
from atoll.server.jobs import JobSpec, report_window_of
from atoll.server.privacy.errors import BudgetSpentError
from atoll.server.rounds import (
    Aggregate,
    BudgetSpent,
    ChargeAndStore,
    Charged,
    CohortDrawn,
    DeadlinePassed,
    DrawCohort,
    DropSpools,
    Effect,
    EffectFailed,
    Event,
    Finish,
    Fold,
    Invite,
    PrepareRound,
    Publish,
    Published,
    RecordRound,
    Rejected,
    RetryDue,
    RoundGrid,
    RoundKey,
    RoundPrepared,
    RunState,
    StartDeadline,
    Started,
    StartRetry,
    Stop,
    SumLost,
)
from atoll.server.runs.aggregator import Aggregator
from atoll.server.runs.drawing import CohortPool, Waiting
from atoll.server.runs.driver import RefusedEventError, RunDriver
from atoll.server.runs.evaluators import SERVER_METRIC, Judgement
from atoll.server.runs.invitations import Invitations
from atoll.server.runs.journal import add_judgement, keep_best
from atoll.server.runs.pushing import Pusher
from atoll.server.runs.run_privacy import RunPrivacy
from atoll.server.runs.services import Services
from atoll.server.runs.stepping import Also, Answer, Work
from atoll.server.runs.tasks import Body, TaskName, Tasks
from atoll.server.sampling.report_window import FixedReportWindow
from atoll.server.telemetry.context import about
from atoll.server.telemetry.observer import NO_OBSERVER, Observer
from atoll.text.figures import counted
from atoll.wire.layout import Layout

T = TypeVar("T")
log = logging.getLogger(__name__)

PATIENCE_S = 3600.0
"""How long workers may refuse an effect before the run fails; disk and database are waited for without limit."""
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0
_FAILING = "fail"
_ROUND = "a round"
_DRAW = "the draw"
_KINDS: dict[type[Effect], str] = {
    DrawCohort: "draw",
    PrepareRound: "prepare",
    ChargeAndStore: "charge",
    Publish: "publish",
    Fold: "fold",
}
"""Names the tasks of effects that may need none; other effects that fail at once go by their own name."""
_REPEATED = frozenset({_FAILING, "fold", "drop", "retain", "finish"})
"""Tasks whose failure does not fail the run: the sum folds what is missing, the next start tidies up."""
_TRANSIENT = (StorageError, UnavailableError)
_UNUSABLE = (CorruptDataError, NotFoundError, InvalidRequestError)


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
        self._privacy = privacy
        self._spec = spec
        self._services = services
        self._pool = pool
        self._aggregator = Aggregator(driver, spec, layout, services, privacy)
        self._troubles: dict[str, str] = {}
        self._tasks = Tasks(driver.run, self._crashed)
        self._fold_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        invitations = Invitations(driver.run, spec, layout, layout_message, services.blobs, privacy)
        self.members = Pusher(driver, invitations, services, self._tasks, self._post_soon)
        # Receipts and records of members are no work: the poster answers, the journal has recorded.
        self._works: dict[type[Effect], Callable[[Any], None]] = {
            Invite: self.members.invite_all,
            Stop: self.members.stop,
            StartDeadline: lambda effect: self.members.deadline(effect, DeadlinePassed(effect.key)),
            StartRetry: self._start_retry,
            Fold: self._fold_when_due,
            Aggregate: lambda effect: self._start(
                TaskName("aggregate", effect.key), lambda: self._aggregate(effect), replaces=True
            ),
            RecordRound: lambda _: self._start(TaskName("retain"), self._retain),
            DropSpools: lambda effect: self._start(TaskName("drop", effect.through), lambda: self._drop(effect)),
            Finish: lambda effect: self._start(TaskName("finish"), lambda: self._finish(effect)),
        }

    def perform(self, effect: Effect, state: RunState) -> Answer | Work:
        """See ``driver.Performer``."""
        match effect:
            case DrawCohort():
                return self._draw(effect)
            case PrepareRound():
                return self._prepare(effect)
            case ChargeAndStore():
                return self._charge(effect, state)
            case Publish():
                return self._publish(effect)
            case _:
                return partial(self._works.get(type(effect), _nothing), effect)

    def begin(self, effect: Effect) -> None:
        """See ``driver.Performer``."""
        name = TaskName(_KINDS.get(type(effect), type(effect).__name__), getattr(effect, "key", None))
        try:
            made = self.perform(effect, self._driver.state)
            if isinstance(made, Answer):
                self._start(name, lambda: self._post(made))
            else:
                made()
        except Exception as error:  # noqa: BLE001 - the run's log goes on: its failure is an event like any other
            self._crashed(name, error)

    async def close(self) -> None:
        """See ``driver.Performer``."""
        await self._tasks.close()

    async def start_run(self) -> None:
        """Start a run that was submitted; returns when that is durable."""
        await self._answer(Started())

    @property
    def trouble(self) -> str:
        """What the run is retrying and why; empty if nothing. Why it broke down, if it did.

        Disk, database or workers refuse something, or connected participants cannot do what the job asks.
        """
        if self._driver.broken is not None:
            return str(self._driver.broken.detail)
        return "; ".join(f"{what} waits: {why}" for what, why in sorted(self._troubles.items()))

    def server_metrics(self, key: RoundKey) -> Mapping[str, float]:
        """Metrics that the operator's evaluator gave the round's model; empty if there are none (yet)."""
        return self._aggregator.server_metrics(key)

    def _start_retry(self, effect: StartRetry) -> None:
        self._tasks.after("retry", effect.delay_s, lambda: self._post_soon(RetryDue(effect.key)))

    def _draw(self, effect: DrawCohort) -> Answer | Work:
        name = TaskName("draw", effect.key)
        if not self._tasks.under_way(name) and not self._services.room.shortage():
            drawn = self._drawn_or_waiting(effect)
            if isinstance(drawn, CohortDrawn):
                return Answer(drawn, cleanup=self._finish_draw)
        return partial(self._draw_anew, name, effect)

    def _draw_anew(self, name: TaskName, effect: DrawCohort) -> None:
        """Draw once there are enough; a task for the same draw is replaced, also one that has not begun to run."""
        self._finish_draw()
        self._start(name, lambda: self._wait_and_draw(effect), replaces=True)

    def _drawn_or_waiting(self, effect: DrawCohort) -> CohortDrawn | Waiting:
        return self._pool.draw(effect, self._driver.run, self._spec, self._unfit, self._privacy)

    async def _wait_and_draw(self, effect: DrawCohort) -> None:
        try:
            await self._retrying("the next round", self._room_for_a_round)
            drawn = self._drawn_or_waiting(effect)
            if not isinstance(drawn, CohortDrawn):
                drawn = await self._retrying(_DRAW, drawn)
            await self._answer(drawn)
        finally:
            self._finish_draw()

    def _unfit(self, why: str) -> None:
        if why and _DRAW not in self._troubles:
            log.warning("run %s: %s", self._driver.run, why)
        self._trouble(_DRAW, why)

    def _finish_draw(self) -> None:
        self._pool.finish_draw(self._driver.run)

    async def _room_for_a_round(self) -> None:
        """Check for disk space: a round that begins on a full disk would lose its members' work."""
        await self._services.call(self._services.room.require, _ROUND)

    def _prepare(self, effect: PrepareRound) -> Answer | Work:
        window = report_window_of(self._spec)
        if isinstance(window, FixedReportWindow):
            return Answer(self._prepared(effect, window.window_s))
        return partial(self._start, TaskName("prepare", effect.key), lambda: self._learn_and_prepare(effect))

    async def _learn_and_prepare(self, effect: PrepareRound) -> None:
        window_s = await self._retrying("preparing", lambda: self._pool.report_window_s(effect, self._spec))
        await self._answer(self._prepared(effect, window_s))

    def _prepared(self, effect: PrepareRound, window_s: float) -> RoundPrepared:
        grid = self._aggregator.grid(effect)
        return RoundPrepared(effect.key, window_s, self._services.clock() + window_s, grid)

    def _fold_when_due(self, effect: Fold) -> None:
        """Start to fold the update, and those that waited for it; it may wait for others itself."""
        live, update = self._driver.state.round, effect.update
        if live is None or live.key != effect.key or live.grid is None:
            return
        grid = live.grid
        name = TaskName("fold", effect.key, f"{update.participant} {update.key} {update.digest}")
        if due := self._aggregator.due(effect, grid):
            self._start(name, lambda: self._fold(effect, grid, due))
        else:
            with self._observer_of(name).working(self._driver.run, name.kind, name.key, name.what):
                pass  # a trace shows when it came

    async def _fold(self, effect: Fold, grid: RoundGrid, due: Sequence[FoldItem]) -> None:
        update = effect.update
        try:
            # Folds of one node would wait for each other, and block its threads for arriving chunks.
            async with self._fold_locks[update.node]:
                await self._aggregator.fold(effect, grid, due)
        except _UNUSABLE as error:
            await self._answer(Rejected(update.key, update.participant, str(error.detail)))
        except ServerError as error:
            level = logging.DEBUG if self._has_secret_draw else logging.INFO
            log.log(level, "run %s: %s is folded later: %s", self._driver.run, update.participant, error.logged)

    async def _aggregate(self, effect: Aggregate) -> None:
        # The sum is read without a lock, so all folds into it must have ended.
        await self._tasks.ended(lambda name: name.kind == "fold" and name.key == effect.key)
        try:
            done = await self._retrying("aggregation", lambda: self._aggregator.aggregate(effect))
        except ServerError as error:
            await self._leave_out(effect, error)
        else:
            await self._answer(done)

    async def _leave_out(self, effect: Aggregate, error: ServerError) -> None:
        """Reject the updates that can no longer be read, since the sum failed; raise if all can be read."""
        damaged = await self._retrying("the look for damage", lambda: self._aggregator.unreadable(effect))
        if not damaged:
            raise error
        said = error.detail.code if self._has_secret_draw else error.logged
        log.error("run %s round %s: aggregation failed: %s", self._driver.run, effect.key, said)
        for update, reason in damaged:
            await self._answer(Rejected(update.key, update.participant, reason))

    def _charge(self, effect: ChargeAndStore, state: RunState) -> Answer | Work:
        if self._aggregator.can_charge(effect):
            return Answer(Charged(effect.key), self._aggregator.charge(effect, state))
        return partial(self._start, TaskName("charge", effect.key), lambda: self._make_again_and_charge(effect))

    async def _make_again_and_charge(self, effect: ChargeAndStore) -> None:
        try:
            await self._retrying("the release", self._aggregator.make_again)
            also = self._aggregator.charge(effect, self._driver.state)
        except _UNUSABLE:
            lost = await self._retrying("the look for damage", self._aggregator.lost)
            if not lost:
                raise
            reason = f"{counted(len(lost), 'update')} of its sum cannot be read any more"
            await self._answer(SumLost(effect.key, reason, tuple(lost)))
        else:
            await self._answer(Charged(effect.key), also)

    def _publish(self, effect: Publish) -> Answer | Work:
        if self._aggregator.is_judged(effect):
            return partial(self._start, TaskName("publish", effect.key), lambda: self._judge_and_publish(effect))
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

        await self._answer(Published(effect.key), also)

    async def _retain(self) -> None:
        await self._tidy("old models", self._aggregator.retain())

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

    async def _drop(self, effect: DropSpools) -> None:
        """End the work on these rounds and delete their uploads."""
        kinds = ("fold", "aggregate", "charge")
        await self._tasks.end(lambda name: name.kind in kinds and name.key is not None and name.key <= effect.through)
        await self._tidy("uploads", self._aggregator.drop(effect))

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
        """Remove what is no longer needed. If that fails, the run goes on and the next sweep removes it."""
        try:
            await work
        except (ServerError, OSError) as error:
            log.warning("run %s: %s not removed: %s", self._driver.run, what, error, extra={"run": self._driver.run})

    def _post_soon(self, event: Event) -> None:
        """Post an event without waiting for it."""
        name = TaskName("post", getattr(event, "key", None), f"{event.kind} {getattr(event, 'participant', '')}")
        self._start(name, lambda: self._answer(event))

    async def _post(self, answer: Answer) -> None:
        """Post an effect's answer outside of the transaction of the event that caused it."""
        try:
            await self._answer(answer.event, answer.also)
        finally:
            answer.cleanup()

    async def _answer(self, event: Event, also: Also | None = None) -> None:
        """Post an event until it is stored: without it the run would stand still until the server restarts.

        Raises:
            ServerError: if the event contradicts what is on record.
        """

        async def post() -> None:
            await self._driver.post(event, also)

        try:
            await self._retrying(event.kind, post, patience_s=math.inf)
        except RefusedEventError as error:
            log.debug("run %s: %s not taken: %s", self._driver.run, event.kind, error)

    async def _retrying(self, what: str, work: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
        """Retry work that disk, database or a worker may refuse for a while; log every refusal.

        Disk and database are retried without limit: an operator repairs them or cancels the run.

        Raises:
            ServerError: for an error that waiting does not solve, or a worker's after ``patience_s``.
        """
        loop, delay_s = asyncio.get_running_loop(), _FIRST_RETRY_S
        until = loop.time() + patience_s
        try:
            while True:
                try:
                    return await work()
                except _TRANSIENT as error:
                    if loop.time() >= until and not isinstance(error, StorageError):
                        raise
                    self._services.observer.retried(what)
                    log.warning(
                        "run %s: %s failed, trying again in %.1f s: %s", self._driver.run, what, delay_s, error.logged
                    )
                    self._trouble(what, error.detail.message)
                    if isinstance(error, StorageFullError):
                        await self._services.call(self._services.room.make_room)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)
        finally:
            self._trouble(what, "")

    def _trouble(self, what: str, why: str) -> None:
        """Show watchers what the run waits for; an empty ``why`` removes it."""
        before = dict(self._troubles)
        self._troubles.pop(what, None)
        if why:
            self._troubles[what] = why
        if self._troubles != before:
            self._driver.announce()

    def _start(self, name: TaskName, body: Body, *, replaces: bool = False) -> None:
        observer = self._observer_of(name)

        async def observed() -> None:
            with (
                about(run=self._driver.run, round=name.key),
                observer.working(self._driver.run, name.kind, name.key, name.what),
            ):
                await body()

        self._tasks.start(name, observed, replaces=replaces)

    def _observer_of(self, name: TaskName) -> Observer:
        """Told of the task; there is one fold for each member that reported, and its name says which."""
        hidden = name.kind == "fold" and self._has_secret_draw
        return NO_OBSERVER if hidden else self._services.observer

    @property
    def _has_secret_draw(self) -> bool:
        """Whether log and traces must not show who is in the round."""
        return self._driver.state.policy.secret_draw

    def _crashed(self, name: TaskName, error: BaseException) -> None:
        """Fail the run if the task was for its current round; pause it if its budget is spent."""
        run, known = self._driver.run, isinstance(error, ServerError)  # it says what is wrong: no traceback
        said = error.logged if isinstance(error, ServerError) else error
        if isinstance(error, BudgetSpentError):
            log.warning("run %s pauses: %s", run, said, extra={"run": run})
        else:
            shown = TaskName(name.kind, name.key) if self._has_secret_draw else name
            log.error("run %s: %s failed: %s", run, shown, said, exc_info=None if known else error, extra={"run": run})
        live = self._driver.state.round
        if name.kind in _REPEATED or live is None or (name.key is not None and name.key != live.key):
            return
        # Members receive the reason. The text of an unknown error may name paths of this machine: it is only logged.
        reason = f"unexpected {type(error).__name__}; the server's log has more"
        if isinstance(error, ServerError):
            reason = str(error.detail)
        spent = isinstance(error, BudgetSpentError)
        failure = BudgetSpent(live.key, reason) if spent else EffectFailed(live.key, name.kind, reason)
        self._start(TaskName(_FAILING, live.key), lambda: self._answer(failure))


def _nothing(_: Effect) -> None:
    pass
