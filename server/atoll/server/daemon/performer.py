"""What each effect does. One performer per run; every method may be asked for again and then changes nothing more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from atoll.server.daemon.drawing import CohortPool
from atoll.server.daemon.driver import Also, RunDriver
from atoll.server.daemon.invitations import Invitations
from atoll.server.daemon.journal import add_metrics
from atoll.server.daemon.releasing import Releaser
from atoll.server.daemon.services import Services
from atoll.server.errors import ConflictError, ServerError, StorageError, UnavailableError
from atoll.server.jobs import JobSpec
from atoll.server.rounds import (
    Aggregate,
    ChargeAndStore,
    Charged,
    DeadlinePassed,
    DrawCohort,
    DropSpools,
    Effect,
    EffectFailed,
    Event,
    Finish,
    Fold,
    Invite,
    LateMode,
    MemberStatus,
    Phase,
    PrepareRound,
    Publish,
    Published,
    Rejected,
    RetryDue,
    RoundKey,
    RoundPrepared,
    RoundState,
    StartDeadline,
    StartRetry,
    Stop,
    WentSilent,
)
from atoll.wire.layout import Layout

T = TypeVar("T")
log = logging.getLogger(__name__)

_EXPECTED = frozenset({MemberStatus.INVITED, MemberStatus.TRAINING, MemberStatus.SILENT})
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 10.0
RETURN_S = 40.0
"""How long the members of a round may take to come back after a restart: a client's longest back-off is 30 s."""


class RunPerformer:
    """Does the effects of one run."""

    def __init__(self, driver: RunDriver, spec: JobSpec, layout: Layout, services: Services, pool: CohortPool) -> None:
        self._driver = driver
        self._spec = spec
        self._services = services
        self._pool = pool
        self._invitations = Invitations(driver.run, spec, layout)
        self._releaser = Releaser(driver, spec, layout, services)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # Receipts are answered by the poster; RecordRound and RecordMember are the journal's.
        self._begin: dict[type[Effect], Callable[[Any], None]] = {
            DrawCohort: lambda effect: self._start("draw", self._draw(effect), replaces=True),
            PrepareRound: lambda effect: self._start(f"prepare {effect.key}", self._prepare(effect)),
            Invite: self._invite_all,
            Stop: self._stop,
            StartDeadline: lambda effect: self._timer("deadline", effect.remaining_s, DeadlinePassed(effect.key)),
            Fold: lambda effect: self._start(f"fold {effect.key} {effect.update}", self._fold(effect)),
            Aggregate: lambda effect: self._start("aggregate", self._aggregate(effect), replaces=True),
            ChargeAndStore: lambda effect: self._start(f"charge {effect.key}", self._charge(effect)),
            Publish: lambda effect: self._start(f"publish {effect.key}", self._publish(effect)),
            StartRetry: lambda effect: self._timer("retry", effect.delay_s, RetryDue(effect.key)),
            DropSpools: lambda effect: self._start(f"drop {effect.through}", self._releaser.drop(effect)),
            Finish: lambda effect: self._start("finish", self._finish(effect)),
        }

    def perform(self, effect: Effect) -> None:
        """See ``driver.Performer``."""
        begin = self._begin.get(type(effect))
        if begin is not None:
            begin(effect)

    def close(self) -> None:
        """See ``driver.Performer``."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks.values():
            task.cancel()

    def server_metrics(self, key: RoundKey) -> Mapping[str, float]:
        """What the operator's evaluator said of the round's model; empty if there is nothing (yet)."""
        return self._releaser.server_metrics(key)

    def invite(self, participant: str) -> None:
        """Push the open round's task to a connected member that is still expected and not at work on it already."""
        state, live = self._driver.state, self._driver.state.round
        session = self._services.sessions.get(participant)
        member = live.roster.get(participant) if live is not None else None
        if live is None or session is None or member is None or not _expects(live, member.status):
            return
        at_work = (self._driver.run, live.key.round, live.key.attempt) in session.introduction.resuming
        if at_work and member.status is not MemberStatus.SILENT:
            return  # one that had been given up says anew that it works on it
        remaining_s = live.deadline_at - self._services.clock()
        task = self._invitations.participate(state, live, remaining_s)
        session.send(self._invitations.for_member(task, state, member.declared_weight))

    def lost(self, participant: str) -> None:
        """A participant is not connected: unless it returns in time, it counts as gone."""
        self._expect(participant, self._services.silence_s)

    def expect_back(self) -> None:
        """After a restart nobody is connected: give the members of the open round time to notice that we are back."""
        live = self._driver.state.round
        for member in live.roster if live is not None else ():
            self._expect(member.participant, max(self._services.silence_s, RETURN_S))

    def _expect(self, participant: str, patience_s: float) -> None:
        live = self._driver.state.round
        member = live.roster.get(participant) if live is not None else None
        if live is None or member is None or not _expects(live, member.status):
            return
        key = live.key
        self._call_later(f"silence {participant}", patience_s, lambda: self._fell_silent(key, participant, patience_s))

    def _invite_all(self, effect: Invite) -> None:
        for participant in effect.participants:
            if self._services.sessions.get(participant) is None:
                self.lost(participant)  # it went between the draw and now, when nobody watched
            self.invite(participant)

    def _fell_silent(self, key: RoundKey, participant: str, patience_s: float) -> None:
        if self._services.sessions.get(participant) is None:
            reason = f"the connection was lost for {patience_s:g} s"
            self._start(f"silent {key} {participant}", self._answer(WentSilent(key, participant, reason)))

    async def _draw(self, effect: DrawCohort) -> None:
        await self._answer(await self._pool.draw(effect, self._driver.run, self._spec))

    async def _prepare(self, effect: PrepareRound) -> None:
        window_s = await self._pool.report_window_s(effect, self._spec)
        grid = self._releaser.grid(effect)
        await self._answer(RoundPrepared(effect.key, window_s, self._services.clock() + window_s, grid))

    def _stop(self, effect: Stop) -> None:
        late_welcome = self._driver.state.policy.straggler.late.mode is LateMode.CARRY
        message = self._invitations.stop(effect.key, effect.reason, late_welcome=late_welcome)
        for participant in effect.participants:
            session = self._services.sessions.get(participant)
            if session is not None:
                session.send(message)

    async def _fold(self, effect: Fold) -> None:
        live = self._driver.state.round
        if live is None or live.key != effect.key or live.grid is None:
            return
        try:
            await self._releaser.fold(effect, live.grid)
        except UnavailableError as error:
            log.info("run %s: %s not folded yet: %s", self._driver.run, effect.update.participant, error.detail)
        except ServerError as error:
            await self._answer(Rejected(effect.update.key, effect.update.participant, str(error.detail)))

    async def _aggregate(self, effect: Aggregate) -> None:
        try:
            done = await self._retrying("aggregation", lambda: self._releaser.aggregate(effect))
        except ServerError as error:
            await self._unusable(effect, error)
            return
        await self._answer(done)

    async def _unusable(self, effect: Aggregate, error: ServerError) -> None:
        """A sum could not be taken: leave out the updates that can no longer be read, or give the run up."""
        log.error("run %s round %s: aggregation failed: %s", self._driver.run, effect.key, error.detail)
        damaged = await self._releaser.unreadable(effect)
        for update, reason in damaged:
            await self._answer(Rejected(update.key, update.participant, reason))
        if not damaged:
            await self._answer(EffectFailed(effect.key, "aggregate", str(error.detail)))

    async def _charge(self, effect: ChargeAndStore) -> None:
        try:
            also = await self._retrying("release", lambda: self._releaser.charge(effect))
        except ServerError as error:
            log.exception("run %s round %s: the release could not be charged", self._driver.run, effect.key)
            await self._answer(EffectFailed(effect.key, "charge", str(error.detail)))
            return
        await self._answer(Charged(effect.key), also)

    async def _publish(self, effect: Publish) -> None:
        metrics = await self._releaser.evaluate(effect)
        await self._answer(Published(effect.key), add_metrics(self._driver.run, effect.key, metrics))
        await self._releaser.retain()

    async def _finish(self, effect: Finish) -> None:
        log.info("run %s has %s: %s", self._driver.run, effect.status, effect.reason, extra={"run": self._driver.run})
        await self._services.nodes.drop_run(self._driver.run)

    async def _answer(self, event: Event, also: Also | None = None) -> None:
        """Post an event until it is stored: without it the run would stand still."""

        async def post() -> None:
            await self._driver.post(event, also)

        try:
            await self._retrying(event.kind, post)
        except ConflictError as error:
            log.debug("run %s: %s not taken: %s", self._driver.run, event.kind, error)

    async def _retrying(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that disk, database or a worker may refuse for a while; every refusal is logged.

        Raises:
            ServerError: for a refusal that waiting does not mend.
        """
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                return await work()
            except (StorageError, UnavailableError) as error:
                log.warning("run %s: %s failed, trying again: %s", self._driver.run, what, error.detail)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    def _start(self, name: str, work: Coroutine[Any, Any, None], *, replaces: bool = False) -> None:
        current = self._tasks.get(name)
        if current is not None and not current.done():
            if not replaces:
                work.close()
                return
            current.cancel()
        task = asyncio.create_task(work, name=f"{self._driver.run} {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("run %s: %s failed unexpectedly", self._driver.run, name, exc_info=error)
            live = self._driver.state.round
            if live is not None:
                self._driver.post(EffectFailed(live.key, name, f"unexpected {type(error).__name__}: {error}"))

    def _timer(self, name: str, delay_s: float, event: Event) -> None:
        self._call_later(name, delay_s, lambda: self._start(f"{name} due", self._answer(event)))

    def _call_later(self, name: str, delay_s: float, call: Any) -> None:
        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = asyncio.get_running_loop().call_later(max(0.0, delay_s), call)


def _expects(live: RoundState, status: MemberStatus) -> bool:
    return live.phase is Phase.OPEN and status in _EXPECTED
