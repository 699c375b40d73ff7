"""Runs the server's tasks, one at a time, and puts the answers into an outbox.

The runner outlives connections: work continues while the check-in stream is down, and answers wait for the next stream.
All methods run in the event loop; the work itself runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.client._clock import bounded_s
from atoll.client._session.invitation import Invitation, invitation_of, key_of, remaining_s_of, reply_to
from atoll.client._session.threads import in_thread
from atoll.client._session.work import MakeWork, Work
from atoll.client._state.usage import UsageLog
from atoll.client._telemetry.logs import OBSERVED, about
from atoll.client._telemetry.tracing import Tracing
from atoll.client._transfer.blob_cache import BlobCache
from atoll.client._transfer.calls import TransferCalls
from atoll.client._transfer.retrier import Abandoned
from atoll.client._transfer.task_transfers import TaskTransfers
from atoll.client.errors import ClientError, NotPermittedError, RoundGoneError, type_name
from atoll.client.events import Declined, Failed, Invited, Observer, Stopped
from atoll.client.participant import objection_of
from atoll.client.policy import Decision
from atoll.wire.digest import DEFAULT_CHUNK_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES
from atoll.wire.errors import WireError
from atoll.wire.v1 import participation_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client._connection.endpoint import Endpoint
    from atoll.client._session.protection import Protection
    from atoll.client.limits import Limits
    from atoll.client.participant import Participant
    from atoll.client.policy import Policy
    from atoll.client.task import RoundKey

log = logging.getLogger("atoll.client")

ACCEPTED = participation_pb2.TaskReply.VERDICT_ACCEPTED
DECLINED = participation_pb2.TaskReply.VERDICT_DECLINED
FAILED = participation_pb2.TaskReply.VERDICT_FAILED
_REMEMBERED = 64


@dataclass
class Tally:
    """Number of tasks by outcome."""

    reported: int = 0
    declined: int = 0
    failed: int = 0

    @property
    def finished(self) -> int:
        """All outcomes together; tasks that the server stopped do not count."""
        return self.reported + self.declined + self.failed


@dataclass
class Job:
    """The current task."""

    invitation: Invitation
    accepted: bool = False
    given_up: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> RoundKey:
        """The task's round."""
        return self.invitation.task.key


class TaskRunner:
    """Accepts or declines invitations and works on them; ``on_finished`` is called after each task in ``tally``.

    With ``hangs_up`` the connection for transfers is closed after each task.
    """

    def __init__(
        self,
        participant: Participant,
        state: Path,
        policy: Policy,
        limits: Limits,
        observer: Observer,
        protection: Protection,
        tracing: Tracing | None = None,
        make_work: MakeWork = Work,
    ) -> None:
        self.participant = participant
        self.tally = Tally()
        self.outbox: asyncio.Queue[participation_pb2.CheckInRequest] = asyncio.Queue()
        self.barred: asyncio.Future[NotPermittedError] = asyncio.get_running_loop().create_future()
        self.on_finished: Callable[[], None] = lambda: None
        self.hangs_up = False
        self._policy = policy
        self._limits = limits
        self._observer = observer
        self._tracing = tracing or Tracing()
        self._make_work = make_work
        self._protection = protection
        self._usage = UsageLog(state)
        self._cache = BlobCache(state / "blobs", limits.cached_models, policy.min_free_disk_bytes)
        self._calls: TransferCalls | None = None
        self._chunk_bytes = DEFAULT_CHUNK_BYTES
        self._idle_spread_s = 0.0
        self._job: Job | None = None
        self._next: Invitation | None = None
        self._answers: OrderedDict[RoundKey, participation_pb2.CheckInRequest] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def can_evaluate(self) -> bool:
        """Whether the server may ask for evaluations."""
        return self.participant.can_evaluate and not self._protection.silent

    def resuming(self) -> tuple[RoundKey, ...]:
        """The rounds in progress, for the next Hello."""
        return () if self._job is None else (self._job.key,)

    async def idle(self) -> None:
        """Wait until no task is in progress."""
        while self._job is not None:
            await self._job.done.wait()

    @property
    def return_spread_s(self) -> float:
        """Seconds over which to spread the reconnect: those of the current task, otherwise those of the fleet."""
        asked = self._idle_spread_s if self._job is None else self._job.invitation.return_spread_s
        return min(asked, self._limits.return_spread_s)

    def welcome(self, transfers: Endpoint, welcome: participation_pb2.Welcome) -> None:
        """A new stream is open: use its endpoint for transfers, and the server's chunk size and spread."""
        self._chunk_bytes = min(max(welcome.chunk_bytes or DEFAULT_CHUNK_BYTES, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        self.spread_return(welcome.return_spread_s)
        if self._calls is None:
            self._calls = TransferCalls(transfers)
        elif self._calls.endpoint != transfers:
            self._calls.renew(transfers)

    def spread_return(self, asked_s: float) -> None:
        """Set the spread of reconnects that applies between tasks."""
        self._idle_spread_s = bounded_s(asked_s, self._limits.return_spread_s)

    def invite(self, message: participation_pb2.Participate) -> None:
        """Handle an invitation: begin the task, queue it, or answer at once.

        Raises:
            WireError: for an invalid round key, which cannot be answered.
        """
        key = key_of(message.key)
        if key in self._answers:  # even while that task's work is still ending
            self.outbox.put_nowait(self._answers[key])
            return
        if self._job is not None and self._job.key == key:
            self._job.invitation.task.control.extend(remaining_s_of(message))
            if self._job.accepted:
                self.outbox.put_nowait(reply_to(key, ACCEPTED))
            return
        try:
            invitation = invitation_of(message)
        except WireError as error:
            self._finish(key, DECLINED, str(error))
            return
        task = invitation.task
        self._observer(Invited(key, task.run_name, task.kind, task.cohort_size, task.remaining_s))
        self._place(invitation)

    def stop(self, message: participation_pb2.Stop) -> None:
        """The server no longer wants the work on a round. Raises ``WireError`` for an invalid round key."""
        key = key_of(message.key)
        if self._next is not None and self._next.task.key == key:
            self._next = None
        if self._job is None or self._job.key != key:
            return
        control = self._job.invitation.task.control
        reason = message.reason or "the server stopped the round"
        if message.late_report_welcome:
            control.stop(reason)
        else:
            control.abandon(reason)

    def give_up(self, reason: str) -> None:
        """Abandon the current task and report that to the server."""
        job = self._job
        if self.lay_down(reason) and job is not None:
            self._finish(job.key, FAILED, reason)

    def lay_down(self, reason: str) -> bool:
        """End the work on the current task without a report to the server; return whether there was any."""
        self._next = None
        if self._job is None or self._job.given_up:
            return False
        self._job.given_up = True
        self._job.invitation.task.control.abandon(reason)
        return True

    async def close(self) -> None:
        """Wait for the work to end, at most ``limits.drain_s``, and close channels and participant."""
        job = self._job
        if job is not None:
            try:
                async with asyncio.timeout(self._limits.drain_s):
                    await job.done.wait()
            except TimeoutError:
                log.warning("fit did not return within %.0f s of the request to stop", self._limits.drain_s)
        if self._calls is not None:
            self._calls.close()
        self.participant.close()

    def _place(self, invitation: Invitation) -> None:
        job = self._job
        if job is None:
            self._begin(invitation)
        elif job.key.run == invitation.task.key.run:
            # Without a Stop the old round may still accept a late report: finish the work and report it.
            job.invitation.task.control.stop(f"the server went on to {invitation.task.key}")
            self._next = invitation
        elif self._next is None and _is_ending(job):
            self._next = invitation
        else:
            self._finish(invitation.task.key, DECLINED, f"busy with {job.key}")

    def _begin(self, invitation: Invitation) -> None:
        self._job = Job(invitation)
        task = asyncio.get_running_loop().create_task(self._run(self._job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job) -> None:
        try:
            with about(job.key):
                await self._attempt(job)
        finally:
            self._job = None
            job.done.set()
            if self._next is not None:
                invitation, self._next = self._next, None
                self._begin(invitation)
            elif self.hangs_up and self._calls is not None:
                self._calls.close()
                self._calls = None

    async def _attempt(self, job: Job) -> None:
        key = job.key
        try:
            decision = await in_thread(lambda: self._decide(job.invitation), "atoll-policy")
            if not decision.accepted:
                self._finish(key, DECLINED, decision.reason or "declined by the participant's policy")
                return
            work = self._work(job.invitation)
            work.raise_if_abandoned()
            job.accepted = True
            self.outbox.put_nowait(reply_to(key, ACCEPTED))
            reported = await in_thread(work.perform, "atoll-work")
        except (Abandoned, RoundGoneError) as stopped:
            self._observer(Stopped(key, str(stopped)))
        except NotPermittedError as error:
            if not self.barred.done():
                self.barred.set_result(error)
        except Exception as error:  # noqa: BLE001  # no failure of a task may end the session
            self._fail(key, error)
        else:
            self.tally.reported += 1
            self._remember(key, reply_to(key, FAILED, "already reported"))
            self._observer(reported)
            self.on_finished()

    def _decide(self, invitation: Invitation) -> Decision:
        decision = self._policy.decide(invitation.task, self._usage.spent())
        if decision.accepted:
            task = invitation.task
            objection = self._protection.objection(task) or objection_of(self.participant, task)
            if objection is not None:
                return Decision.decline(objection)
            self._usage.add(rounds=1)
        return decision

    def _work(self, invitation: Invitation) -> Work:
        if self._calls is None:
            raise ClientError("the server sent an invitation before its welcome")
        task = invitation.task
        transfers = TaskTransfers(self._calls, self._limits, task.control, self._chunk_bytes, task.traceparent)
        return self._make_work(
            self.participant,
            invitation,
            transfers,
            self._cache,
            self._usage,
            self._observer,
            self._tracing,
            self._protection,
        )

    def _fail(self, key: RoundKey, error: Exception) -> None:
        if isinstance(error, ClientError | WireError | OSError):
            log.error("%s failed: %s", key, error, extra=OBSERVED)
        else:
            log.error("%s failed unexpectedly", key, exc_info=error)
        self._finish(key, FAILED, f"{type_name(error)}: {error}", self._protection.text_for_server(error))

    def _finish(
        self,
        key: RoundKey,
        verdict: participation_pb2.TaskReply.Verdict.ValueType,
        reason: str,
        for_server: str | None = None,
    ) -> None:
        """Answer a round without a report, and remember the answer.

        ``reason`` is for the participant's own observer; ``for_server`` is for the server, by default the same.
        """
        declined = verdict == DECLINED
        self._observer((Declined if declined else Failed)(key, reason))
        self.tally.declined += declined
        self.tally.failed += not declined
        answer = reply_to(key, verdict, reason if for_server is None else for_server)
        self._remember(key, answer)
        self.outbox.put_nowait(answer)
        self.on_finished()

    def _remember(self, key: RoundKey, answer: participation_pb2.CheckInRequest) -> None:
        self._answers[key] = answer
        while len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)


def _is_ending(job: Job) -> bool:
    """Whether the server may regard the work as over: the report is sent but not answered, or the task is stopped."""
    control = job.invitation.task.control
    return control.reporting.is_set() or control.stop_event.is_set()
