"""Checks in with single calls instead of a stream: for devices that sleep between two rounds, such as phones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atoll.client._clock import bounded_s
from atoll.client._session.check_in import apply_instruction, hello_of, welcome
from atoll.client.events import CheckedIn, Connected, Observer
from atoll.text.printable import make_printable
from atoll.wire.errors import WireError
from atoll.wire.v1 import participation_pb2, participation_pb2_grpc

if TYPE_CHECKING:
    import grpc.aio

    from atoll.client._session.renewal import Renewal
    from atoll.client._session.task_runner import TaskRunner
    from atoll.client.limits import Limits

    Stub = participation_pb2_grpc.ParticipationServiceAsyncStub
    Call = grpc.aio.UnaryUnaryCall[participation_pb2.CheckInOnceRequest, participation_pb2.CheckInOnceResponse]

log = logging.getLogger("atoll.client")

MAX_REPLIES = 16
"""Maximum number of answers to tasks in one call, as on the server."""
ANSWER_S = 2.0
"""Time for which the connection stays open after an invitation, so that the answer can reuse it."""
JITTER = 0.05
"""A participant returns later than the server's time by up to this share of it."""


def until_next_s(asked_s: float, chance: float) -> float:
    """Seconds until the next check-in; ``chance`` in [0, 1) spreads participants that got the same time."""
    return asked_s * (1.0 + JITTER * chance)


class UnaryCheckIns:
    """Checks in, sleeps until the time that the server gives, and checks in again; replaces a stream.

    An answer to a task is sent at once. Between two calls there is no connection.
    """

    def __init__(
        self, runner: TaskRunner, renewal: Renewal, limits: Limits, observer: Observer, labels: Mapping[str, str]
    ) -> None:
        self.welcomed = False
        self._runner = runner
        self._renewal = renewal
        self._limits = limits
        self._observer = observer
        self._labels = labels
        self._leaving = asyncio.Event()
        self._answers: list[participation_pb2.TaskReply] = []
        self._at_work = False
        """Whether a task was in progress at a call of this visit, or came with an answer."""

    def leave(self) -> None:
        """Send the rest of the outbox, then end."""
        self._leaving.set()

    async def run(self) -> None:
        """Check in again and again; returns only after ``leave``.

        Raises:
            ComeBackLater: if the server says so.
            grpc.aio.AioRpcError: if a call fails or is refused.
            TimeoutError: if a call is not answered in time.
            NotPermittedError, RefusedError: if the renewal of the certificate is refused or gives no certificate.
            ClientError: if the server names an invalid address for transfers.
        """
        try:
            while True:
                answer = await self._visit()
                if self._leaving.is_set() and not await self._has_answers():
                    return
                if answer is not None:
                    await self._rest(answer)
        finally:
            for reply in self._answers:  # the next connection sends them
                self._runner.outbox.put_nowait(participation_pb2.CheckInRequest(reply=reply))

    async def _visit(self) -> participation_pb2.CheckInOnceResponse | None:
        """Check in over one connection: once, and again if a task must be answered. None: the session ends."""
        endpoint, self._at_work = self._renewal.endpoint, False
        async with endpoint.open_async() as channel:
            stub: Stub = participation_pb2_grpc.ParticipationServiceStub(channel)
            while True:
                answer = await self._call(stub)
                if answer is None:
                    return None
                # Its connection is short: the next one has the server's interval of pings.
                await self._renewal.follow_pings(answer.welcome.ping_s)
                self._take(answer)
                if self._renewal.due_in_s(answer.welcome.certificate_remaining_s) <= 0.0:
                    await self._renewal.renew(channel)
                invited = any(one.HasField("participate") for one in answer.instructions)
                if not await self._has_answers(ANSWER_S if invited else 0.0):
                    return answer

    async def _call(self, stub: Stub) -> participation_pb2.CheckInOnceResponse | None:
        """One call; None if the session ends while the server holds it."""
        await self._has_answers()
        sent = self._answers[:MAX_REPLIES]
        works = bool(self._runner.resuming())
        self._at_work = self._at_work or works
        idle = not (sent or works or self._leaving.is_set())
        wait_s = self._limits.hold_s if idle else 0.0
        request = participation_pb2.CheckInOnceRequest(
            hello=hello_of(self._runner, self._labels), replies=sent, wait_s=wait_s
        )
        metadata = self._renewal.endpoint.metadata
        call = stub.CheckInOnce(request, timeout=self._limits.connect_s + wait_s, metadata=metadata)
        try:
            if idle and await self._ends_first(call):
                return None
            answer = await call
        finally:
            call.cancel()
        del self._answers[: len(sent)]
        make_printable(answer, as_they_are=("layout", "key"))  # names of tensors and rounds are sent back unchanged
        return answer

    async def _ends_first(self, call: Call) -> bool:
        """Whether the session ends before the call does."""
        leaving = asyncio.create_task(self._leaving.wait())
        done = asyncio.create_task(call.code())
        try:
            await asyncio.wait({leaving, done}, return_when=asyncio.FIRST_COMPLETED)
            return not done.done()
        finally:
            leaving.cancel()
            done.cancel()
            await asyncio.gather(leaving, done, return_exceptions=True)

    def _take(self, answer: participation_pb2.CheckInOnceResponse) -> None:
        endpoint, first = self._renewal.endpoint, not self.welcomed
        welcome(self._runner, endpoint, answer.welcome)
        self.welcomed = True
        if first:
            self._observer(Connected(endpoint.address, answer.welcome.participant, answer.welcome.server_version))
        for message in answer.instructions:
            try:
                apply_instruction(self._runner, message, self._limits)
            except WireError as error:
                log.warning("a message of the server is ignored: %s", error)
        self._at_work = self._at_work or bool(self._runner.resuming())

    async def _rest(self, answer: participation_pb2.CheckInOnceResponse) -> None:
        """Sleep until the next check-in is due or there is an answer to send."""
        asked_s = bounded_s(answer.return_after_s, self._limits.return_after_cap_s)
        delay = until_next_s(asked_s, random.random())  # noqa: S311 - spreads load, hides nothing
        self._observer(CheckedIn(delay))
        wakers: set[asyncio.Task[Any]] = {
            asyncio.create_task(self._leaving.wait()),
            asyncio.create_task(self._has_answers(delay)),
        }
        if answer.return_when_done and self._at_work:  # at once if the task was done before the answer came
            wakers.add(asyncio.create_task(self._runner.idle()))
        try:
            await asyncio.wait(wakers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in wakers:
                task.cancel()
            await asyncio.gather(*wakers, return_exceptions=True)

    async def _has_answers(self, within_s: float = 0.0) -> bool:
        """Whether there is an answer to send, now or within some seconds."""
        outbox = self._runner.outbox
        if not self._answers and outbox.empty() and within_s > 0.0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    self._keep(await outbox.get())
        while not outbox.empty():
            self._keep(outbox.get_nowait())
        return bool(self._answers)

    def _keep(self, message: participation_pb2.CheckInRequest) -> None:
        self._answers.append(message.reply)
        self._runner.outbox.task_done()
