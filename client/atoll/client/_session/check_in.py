"""One check-in stream, from Hello to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import grpc

from atoll.client._clock import bounded_s
from atoll.client._session.invitation import round_key_message
from atoll.client.errors import ClientError, UsageError
from atoll.client.events import Connected, Observer
from atoll.client.participant import declared_examples
from atoll.text.printable import make_printable
from atoll.wire.encoding import Encoding
from atoll.wire.errors import WireError
from atoll.wire.messages import PROTOCOL
from atoll.wire.v1 import participation_pb2, participation_pb2_grpc, tensors_pb2

if TYPE_CHECKING:
    from atoll.client._connection.endpoint import Endpoint
    from atoll.client._session.renewal import Renewal
    from atoll.client._session.task_runner import TaskRunner
    from atoll.client.limits import Limits

    Call = grpc.aio.StreamStreamCall[participation_pb2.CheckInRequest, participation_pb2.CheckInResponse]

log = logging.getLogger("atoll.client")

MAX_ANSWERS = 1000
"""Maximum number of answers waiting to be written; with more, the server is not reading and the stream is closed."""


class StreamEnded(Exception):  # noqa: N818  # the normal end of a stream
    """The server closed the stream without an error."""


class ComeBackLater(Exception):  # noqa: N818  # an order, not an error
    """The server asked to close the stream and to reconnect after a delay."""

    def __init__(self, after_s: float, reason: str) -> None:
        super().__init__(reason or "the server asked to come back later")
        self.after_s = after_s


class Rejoin(Exception):  # noqa: N818  # the client's own decision
    """The stream must be opened again: with the new certificate, or the server's interval of pings."""


class CheckInStream:
    """Sends Hello, then passes messages to the task runner and writes its outbox, until either side ends the stream."""

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

    def leave(self) -> None:
        """Write the rest of the outbox, then half-close the stream."""
        self._leaving.set()

    async def run(self) -> None:
        """Hold the stream; returns only after ``leave``.

        Raises:
            StreamEnded, ComeBackLater, Rejoin: if the stream ends for another reason. ``Rejoin`` for the interval of
                pings comes before any invitation is read: the server sends it again on the next stream.
            grpc.aio.AioRpcError: if it breaks or is refused.
            TimeoutError: if there is no welcome within ``limits.connect_s``.
            NotPermittedError, RefusedError: if the renewal of the certificate is refused or gives no certificate.
            ClientError: if the server does not answer Hello with a welcome.
        """
        endpoint = self._renewal.endpoint
        async with endpoint.open_async() as channel:
            call = participation_pb2_grpc.ParticipationServiceStub(channel).CheckIn(metadata=endpoint.metadata)
            try:
                async with asyncio.timeout(self._limits.connect_s):
                    welcome = await self._greet(call)
                await self._converse(call, channel, welcome)
            finally:
                call.cancel()

    async def _greet(self, call: Call) -> participation_pb2.Welcome:
        await call.write(participation_pb2.CheckInRequest(hello=hello_of(self._runner, self._labels)))
        first = await self._next(call)
        if first.WhichOneof("message") == "come_back":
            raise _later(first.come_back, self._limits)
        if first.WhichOneof("message") != "welcome":
            raise ClientError(
                f"the server greeted with {first.WhichOneof('message')}, not with a welcome; is it Atoll?"
            )
        said = first.welcome
        if await self._renewal.follow_pings(said.ping_s):
            raise Rejoin
        endpoint = self._renewal.endpoint
        self.welcomed = True
        welcome(self._runner, endpoint, said)
        self._observer(Connected(endpoint.address, said.participant, said.server_version))
        return said

    async def _converse(self, call: Call, channel: grpc.aio.Channel, welcome: participation_pb2.Welcome) -> None:
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call))
        renewal = asyncio.create_task(self._renewal.run(channel, welcome.certificate_remaining_s))
        leaving = asyncio.create_task(self._leaving.wait())
        tasks: set[asyncio.Task[Any]] = {reader, writer, renewal, leaving}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                await self._part(call, reader)
            elif renewal.done():
                renewal.result()
                raise Rejoin
            else:
                await reader  # a failed write ends the call; the reader raises the reason
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: Call) -> None:
        while True:
            message = await self._next(call)
            if self._runner.outbox.qsize() > MAX_ANSWERS:
                raise StreamEnded(f"the server does not read the answers: {MAX_ANSWERS} are waiting")
            try:
                apply_instruction(self._runner, message, self._limits)
            except WireError as error:
                log.warning("a message of the server is ignored: %s", error)

    async def _next(self, call: Call) -> participation_pb2.CheckInResponse:
        message = await call.read()
        if not isinstance(message, participation_pb2.CheckInResponse):  # the end-of-stream mark
            raise StreamEnded("the server closed the stream")
        make_printable(message, as_they_are=("layout", "key"))  # names of tensors and rounds are sent back unchanged
        return message

    async def _write(self, call: Call) -> None:
        outbox = self._runner.outbox
        while True:
            message = await outbox.get()
            try:
                await call.write(message)
            except BaseException:
                outbox.put_nowait(message)  # the next stream sends it
                raise
            finally:
                outbox.task_done()

    async def _part(self, call: Call, reader: asyncio.Task[None]) -> None:
        """Let the writer empty the outbox and half-close, then give the server a moment to close its side."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            async with asyncio.timeout(self._limits.drain_s):
                await self._runner.outbox.join()
                await call.done_writing()
                await asyncio.wait({reader})


def hello_of(runner: TaskRunner, labels: Mapping[str, str]) -> participation_pb2.Hello:
    """A participant's declarations at check-in."""
    return participation_pb2.Hello(
        protocol=PROTOCOL,
        client_version=version("atoll"),
        examples=declared_examples(runner.participant),
        labels=dict(labels),
        encodings=[tensors_pb2.Encoding.ValueType(encoding) for encoding in Encoding],
        can_evaluate=runner.can_evaluate,
        resuming=[round_key_message(key) for key in runner.resuming()],
    )


def welcome(runner: TaskRunner, endpoint: Endpoint, said: participation_pb2.Welcome) -> None:
    """Read the server's welcome.

    Raises:
        ClientError: if it names an invalid address for transfers.
    """
    runner.welcome(_transfers(endpoint, said.transfer_address), said)


def apply_instruction(runner: TaskRunner, message: participation_pb2.CheckInResponse, limits: Limits) -> None:
    """Pass an instruction of the server to the task runner.

    Raises:
        ComeBackLater: if the server asks to come back later.
        WireError: for an invalid round key.
    """
    match message.WhichOneof("message"):
        case "participate":
            runner.invite(message.participate)
        case "stop":
            runner.stop(message.stop)
        case "come_back":
            raise _later(message.come_back, limits)
        case "return_spread":
            runner.spread_return(message.return_spread.return_spread_s)
        case other:
            log.debug("a message of a newer kind is ignored: %s", other)


def _later(order: participation_pb2.ComeBack, limits: Limits) -> ComeBackLater:
    if order.cause == participation_pb2.ComeBack.CAUSE_TAKEN_OVER:
        log.warning("another process uses this identity at the same time; give each participant a state of its own")
    return ComeBackLater(bounded_s(order.after_s, limits.give_up_after_s), order.reason)


def _transfers(endpoint: Endpoint, address: str) -> Endpoint:
    """The endpoint of transfers: the stream's own if the server names no other address."""
    try:
        return endpoint.at(address) if address else endpoint
    except UsageError as error:
        raise ClientError(f"the server names an invalid address for transfers: {error}") from None
