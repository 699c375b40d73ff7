"""The session: keeps the participant checked in until it is stopped.

It uses one event loop, and one check-in stream at a time or single calls. After any failure the session reconnects with
a jittered delay. It ends when it is stopped, when the server does not accept the identity, or when the server is
unreachable for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import grpc

from atoll.client._clock import now_s
from atoll.client._connection.backoff import Backoff
from atoll.client._connection.refusals import error_of, refusal_of, retry_after_s
from atoll.client._session.check_in import CheckInStream, ComeBackLater, Rejoin, StreamEnded
from atoll.client._session.protection import protection_of
from atoll.client._session.renewal import Renewal
from atoll.client._session.task_runner import Tally, TaskRunner
from atoll.client._session.threads import in_thread
from atoll.client._session.unary_check_in import UnaryCheckIns
from atoll.client._session.work import MakeWork, Work
from atoll.client._telemetry.tracing import Tracing
from atoll.client._telemetry.tracing_setup import tracing_of
from atoll.client.errors import ClientError, NotPermittedError, UnreachableError, UsageError
from atoll.client.events import Announcer, Disconnected, Finished, Observer, log_event
from atoll.client.limits import CheckInWay, Limits
from atoll.client.policy import Policy

if TYPE_CHECKING:
    from atoll.client._connection.endpoint import Endpoint
    from atoll.client.participant import Participant


@dataclass(frozen=True)
class Summary:
    """The outcome of a session: tasks reported, declined and failed, and why it ended."""

    reported: int
    declined: int
    failed: int
    reason: str


@dataclass
class Session:
    """A participant's session with one server.

    ``state`` is the participant's own directory. The session ends after ``max_rounds`` tasks that were reported,
    declined or failed; 0 means no limit. ``make_work`` makes the work on an invitation. ``check_in`` says whether the
    participant holds a stream or checks in with single calls.
    """

    participant: Participant
    endpoint: Endpoint
    state: Path
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    observer: Observer = log_event
    labels: Mapping[str, str] = field(default_factory=dict)
    max_rounds: int = 0
    tracing: Tracing = field(default_factory=tracing_of)
    make_work: MakeWork = Work
    check_in: CheckInWay = "stream"

    def __post_init__(self) -> None:
        if self.check_in not in get_args(CheckInWay):
            raise UsageError(f"check_in is {self.check_in!r}; it is one of: {', '.join(get_args(CheckInWay))}")
        self._stop_reason = ""
        self._returns = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    def stop(self, reason: str = "stopped") -> None:
        """End the session soon: the current task is abandoned and reported to the server. Call it from any thread."""
        self._stop_reason = self._stop_reason or reason
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended already
                self._loop.call_soon_threadsafe(self._ending.set)

    def leave(self, reason: str = "stopped") -> None:
        """End the session soon, but keep the current task for a later session with this identity.

        The work on it ends without a message to the server, which invites the participant to the round again when it
        returns, until the round is over. Call it from any thread.
        """
        self._returns = True
        self.stop(reason)

    async def run(self) -> Summary:
        """Take part until stopped, or ``max_rounds`` are done.

        Raises:
            NotPermittedError: if the server does not accept the identity, or no longer.
            UnreachableError: if it was unreachable for ``limits.give_up_after_s``.
            UsageError: if the participant cannot be used.
            ClientError: if the server does not speak the protocol.
        """
        self._loop = asyncio.get_running_loop()
        if self._stop_reason:
            self._ending.set()
        announce = Announcer(self.observer)
        self.participant.prepare(self.state)
        protection = protection_of(self.policy, self.state, self.endpoint.federation)
        parts = (self.limits, announce, protection, self.tracing, self.make_work)
        runner = TaskRunner(self.participant, self.state, self.policy, *parts)
        runner.on_finished = lambda: self._count(runner.tally)
        renewal = Renewal(self.endpoint, self.state, self.limits, announce)
        try:
            await self._stay_connected(runner, renewal, announce)
        finally:
            self._release(runner)
            await runner.close()
            await in_thread(self.tracing.close, "atoll-traces")
        tally = runner.tally
        announce(Finished(self._stop_reason, tally.reported))
        return Summary(tally.reported, tally.declined, tally.failed, self._stop_reason)

    def _release(self, runner: TaskRunner) -> None:
        """End the current task."""
        reason = self._stop_reason or "the session broke off"
        if self._returns:
            runner.lay_down(reason)
        else:
            runner.give_up(reason)

    def _count(self, tally: Tally) -> None:
        if self.max_rounds and tally.finished >= self.max_rounds:
            self.stop(f"{tally.finished} of {self.max_rounds} rounds are done")

    async def _stay_connected(self, runner: TaskRunner, renewal: Renewal, announce: Announcer) -> None:
        backoff = Backoff(self.limits.backoff_base_s, self.limits.backoff_cap_s)
        last_seen = now_s()
        way = UnaryCheckIns if self.check_in == "unary" else CheckInStream
        runner.hangs_up = way is UnaryCheckIns
        while not self._ending.is_set():
            connection = way(runner, renewal, self.limits, announce, self.labels)
            try:
                await self._hold(connection, runner)
            except Rejoin:
                last_seen = now_s()
            except ComeBackLater as order:
                if connection.welcomed:
                    backoff.reset()
                delay = max(order.after_s, backoff.next_s())  # so that a server cannot cause a tight loop
                last_seen = now_s() + delay
                announce(Disconnected(str(order), delay))
                await self._pause(delay)
            except (grpc.aio.AioRpcError, StreamEnded, TimeoutError) as error:
                if connection.welcomed:
                    backoff.reset()
                    last_seen = now_s()
                if await self._recovered(error, renewal):
                    continue
                reason = self._reason(error)
                asked_s = retry_after_s(error_of(error)[2], self.limits) if isinstance(error, grpc.RpcError) else 0.0
                # A server that gives a time to return knows more than when it sent the spread.
                spread_s = 0.0 if asked_s else runner.return_spread_s
                delay = self._delay(max(backoff.next_s(spread_s), asked_s), last_seen, reason)
                announce(Disconnected(reason, delay))
                await self._pause(delay)

    async def _hold(self, connection: CheckInStream | UnaryCheckIns, runner: TaskRunner) -> None:
        """Stay checked in until the server or a stop ends the session, or a task's calls refuse the identity."""
        stream = asyncio.create_task(connection.run())
        ending = asyncio.create_task(self._ending.wait())
        try:
            either: set[asyncio.Future[Any]] = {stream, ending, runner.barred}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if runner.barred.done():
                raise runner.barred.result()
            if ending.done() and not stream.done():
                self._release(runner)
                connection.leave()
                await asyncio.wait({stream}, timeout=2 * self.limits.drain_s)
            if stream.done():
                stream.result()
        finally:
            ending.cancel()
            stream.cancel()
            await asyncio.gather(stream, ending, return_exceptions=True)

    async def _recovered(self, error: Exception, renewal: Renewal) -> bool:
        """Whether the connection failed because the certificate expired, and the certificate is now renewed.

        If the enrolment port is unreachable, the session reconnects later, as after any lost connection.

        Raises:
            NotPermittedError: if the server refuses to renew it.
        """
        identity = renewal.endpoint.identity
        failed = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAVAILABLE
        if identity is None or not failed or not renewal.expired() or renewal.too_soon():
            return False
        try:
            await renewal.recover()
        except UnreachableError:
            return False
        except ClientError as refusal:
            until = f"{identity.validity[1]:%Y-%m-%d %H:%M} UTC"
            raise NotPermittedError(
                f"the certificate expired on {until}; enrol with a new join token ({refusal})"
            ) from None
        return True

    def _reason(self, error: Exception) -> str:
        """Describe a failed connection.

        Raises:
            NotPermittedError: if the server does not accept the identity.
            RefusedError: if it refuses the call permanently.
        """
        if isinstance(error, TimeoutError):
            return f"no welcome from {self.endpoint.address} within {self.limits.connect_s:.0f} s"
        if not isinstance(error, grpc.aio.AioRpcError):
            return str(error)
        refusal = refusal_of(error)
        if refusal is not None:
            raise refusal
        code, text, _ = error_of(error)
        return f"{code.name}: {text}"

    def _delay(self, delay: float, last_seen: float, reason: str) -> float:
        """The delay before the next try.

        Raises:
            UnreachableError: if the server will have been unreachable for too long by then.
        """
        away = now_s() - last_seen
        if away + delay > self.limits.give_up_after_s:
            raise UnreachableError(f"{self.endpoint.address} was unreachable for {away:.0f} s; last error: {reason}")
        return delay

    async def _pause(self, delay: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._ending.wait()
