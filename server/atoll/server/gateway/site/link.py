"""The gateway's link to the server: one channel with two streams and other calls, re-established when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from atoll.server.errors import ForbiddenError, NotFoundError, ServerError, UnauthenticatedError, UnavailableError
from atoll.server.gateway.site.relay import Relay
from atoll.server.rpc.bounds import MAX_OPERATOR_BYTES
from atoll.server.rpc.coordinator_service import RemoteCoordinator
from atoll.server.rpc.internal_calls import as_server_errors
from atoll.wire.digest import MAX_CHUNK_BYTES
from atoll.wire.pacing import ping_interval_s
from atoll.wire.v1 import gateway_pb2
from atoll.wire.v1.gateway_pb2_grpc import GatewayServiceStub

log = logging.getLogger(__name__)

SERVER = "server"
IDENTITY_S = 30.0
"""Seconds for which a participant's identity is cached. The server announces revocations."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 10.0
EXPIRED = "certificate.expired"
TAKEN_OVER = "gateway.taken_over"
"""Code of the error after which the link waits as long as the server says: another process has this identity too."""
CALL_S = 30.0
WELCOME_S = 30.0
"""Maximum seconds to wait for the server to accept the link."""
SLOW_ANSWER_S = 60.0
"""Seconds within which a ping to the server must be answered over a line that may be slow and busy with a sum."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_OPERATOR_BYTES + MAX_CHUNK_BYTES),
    ("grpc.max_send_message_length", MAX_CHUNK_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
)


class Performing(Protocol):
    """Performs the server's orders."""

    async def begin(self) -> None:
        """Prepare for a new stream of orders; called before it is opened.

        Raises:
            ServerError: if that fails; the link then reconnects.
        """
        ...

    async def perform(self, order: gateway_pb2.WorkResponse) -> gateway_pb2.OrderDone:
        """Perform an order; its error, if there is one, is in the answer."""
        ...


@dataclass(frozen=True)
class Line:
    """One connection to the server."""

    channel: grpc.aio.Channel
    coordinator: RemoteCoordinator
    gateway: Any


class Link:
    """Keeps the link. Only the event loop uses it.

    Args:
        address: the server's main port.
        credentials: returns the gateway's credentials; called for each connection, since certificates are renewed.
        name: this gateway's name in errors.
        ping_answer_s: seconds within which the server must answer a ping; otherwise the connection counts as lost.
        hello: the gateway's own addresses.
        relay: the sessions.

    Attributes:
        worker: performs the server's orders; set it before ``run``.
        hear_ping_s: called with the server's interval of keepalive pings, in seconds, whenever a link is made.
        connected: number of links made so far.
    """

    def __init__(
        self,
        address: str,
        credentials: Callable[[], grpc.ChannelCredentials],
        hello: gateway_pb2.GatewayHello,
        relay: Relay,
        name: str = "this aggregator",
        ping_answer_s: float = SLOW_ANSWER_S,
    ) -> None:
        self._address = address
        self._tls_name = ""
        self._name = name
        self._answering = ("grpc.http2.ping_timeout_ms", round(1000 * ping_answer_s))
        self._credentials = credentials
        self._hello = hello
        self._relay = relay
        self.worker: Performing | None = None
        self.hear_ping_s: Callable[[float], None] = lambda _: None
        self._line: Line | None = None
        self._renew = asyncio.Event()
        self.connected = 0
        self.since = time.time()

    @property
    def up(self) -> bool:
        """Whether the link is up."""
        return self._line is not None

    def open_channel(self) -> grpc.aio.Channel:
        """Open another connection to the server, which the caller closes."""
        return grpc.aio.secure_channel(self._address, self._credentials(), options=self._options)

    @property
    def _options(self) -> tuple[tuple[str, Any], ...]:
        named = (("grpc.ssl_target_name_override", self._tls_name),) if self._tls_name else ()
        return (*_OPTIONS, self._answering, *named)

    def line(self) -> Line:
        """The current connection.

        Raises:
            UnavailableError: if there is none.
        """
        if self._line is None:
            raise self.lost()
        return self._line

    def lost(self) -> UnavailableError:
        """The error for a call that needs the server while there is no connection."""
        return UnavailableError(
            "gateway.link", f"{self._name} has no connection to its server now", "try again", retry_after_s=1.0
        )

    async def stands(self) -> bool:
        """Check that the server still accepts calls of this gateway.

        Raises:
            UnavailableError: if there is no connection.
            ServerError: if it does not answer.
        """
        try:
            async with as_server_errors(SERVER):
                await self.line().gateway.GetPartialStatus(gateway_pb2.GetPartialStatusRequest(), timeout=CALL_S)
        except NotFoundError:
            return True
        except (UnauthenticatedError, ForbiddenError):
            return False
        return True

    def reconnect(self) -> None:
        """Reconnect with a renewed certificate."""
        self._renew.set()

    def go_to(self, address: str, tls_name: str) -> None:
        """Connect at once to another server, or to another process of the server.

        Args:
            address: address of its main port.
            tls_name: a name in its certificate, which may differ from the address.
        """
        self._address, self._tls_name = address, tls_name
        self._renew.set()

    def forget(self) -> None:
        """Forget all identities, after a participant was revoked."""
        if self._line is not None:
            self._line.coordinator.forget()

    async def run(self) -> None:
        """Keep the link until cancelled.

        Raises:
            UnauthenticatedError, ForbiddenError: if the server does not accept this gateway, since it was revoked. An
                expired certificate does not raise, since it may still be renewed.
        """
        failures = 0
        while True:
            before, least_s = self.connected, 0.0
            try:
                await self._connect()
                log.info("reconnecting to the server")
            except (UnauthenticatedError, ForbiddenError) as error:
                if error.detail.code != EXPIRED:
                    raise
                log.warning("connecting again with a renewed certificate: %s", error.logged)
            except ServerError as error:
                log.warning("no connection to the server: %s", error.logged)
                if error.detail.code == TAKEN_OVER:
                    least_s = error.detail.retry_after_s or 0.0
            failures = failures + 1 if before == self.connected else 0
            delay_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures, 10))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(least_s, delay_s * random.uniform(0.5, 1.0))):  # noqa: S311 - spreads load
                    await self._renew.wait()

    async def _connect(self) -> None:
        """Hold one connection until it breaks or must be replaced.

        Raises:
            ServerError: the reason why it broke.
        """
        worker = self.worker
        if worker is None:
            raise RuntimeError("set worker before the link runs")
        self._renew.clear()
        async with self.open_channel() as channel:
            stub: Any = GatewayServiceStub(channel)
            line = Line(channel, RemoteCoordinator(channel, IDENTITY_S), stub)
            attending = stub.Attend(wait_for_ready=False)
            try:
                async with as_server_errors(SERVER):
                    await self._unless_renewed(self._welcomed(attending))
                if not self._renew.is_set():
                    await worker.begin()
                    await self._serve(line, worker, attending, stub.Work())
            finally:
                self._line = None
                self._relay.detach()
                self.since = time.time()

    async def _unless_renewed(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait, at most until the connection must be replaced."""
        tasks = [asyncio.create_task(waiting), asyncio.create_task(self._renew.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _welcomed(self, attending: Any) -> None:
        try:
            async with asyncio.timeout(WELCOME_S):
                await _write(attending, gateway_pb2.AttendRequest(hello=self._hello))
                first = await attending.read()
        except TimeoutError:
            raise UnavailableError("gateway.link", f"no answer within {WELCOME_S:g} s", retry_after_s=1.0) from None
        if first is grpc.aio.EOF or first.WhichOneof("message") != "welcome":
            raise UnavailableError("gateway.link", "the server ended the stream", retry_after_s=1.0)
        log.info("connected to the server %s, version %s", self._address, first.welcome.server_version)
        self.hear_ping_s(ping_interval_s(first.welcome.ping_s))

    async def _serve(self, line: Line, worker: Performing, attending: Any, working: Any) -> None:
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._send(attending),
                self._receive(attending),
                self._work(worker, working),
                self._renew.wait(),
            )
        ]
        self._line = line
        self.connected += 1
        self.since = time.time()
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            async with as_server_errors(SERVER):
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            attending.cancel()
            working.cancel()

    async def _send(self, attending: Any) -> None:
        outbox = self._relay.attach()
        while (message := await outbox.get()) is not None:
            await _write(attending, message)

    async def _receive(self, attending: Any) -> None:
        while (response := await attending.read()) is not grpc.aio.EOF:
            self._relay.take(response)
        await _raise_status(attending)

    async def _work(self, worker: Performing, working: Any) -> None:
        """Perform orders concurrently, and send their outcomes."""
        await _write(working, gateway_pb2.WorkRequest(hello=gateway_pb2.WorkHello()))
        writing, running = asyncio.Lock(), set[asyncio.Task[None]]()

        async def perform(order: gateway_pb2.WorkResponse) -> None:
            done = await worker.perform(order)
            async with writing:
                await _write(working, gateway_pb2.WorkRequest(done=done))

        try:
            while (order := await working.read()) is not grpc.aio.EOF:
                task = asyncio.create_task(perform(order))
                running.add(task)
                task.add_done_callback(_forgotten(running))
            await _raise_status(working)
        finally:
            for task in running:
                task.cancel()


def _forgotten(running: set[asyncio.Task[None]]) -> Callable[[asyncio.Task[None]], None]:
    """Forget a task that has ended; if the stream has broken, its reader reports the reason."""

    def forget(task: asyncio.Task[None]) -> None:
        running.discard(task)
        if not task.cancelled():
            task.exception()

    return forget


async def _write(call: Any, message: Any) -> None:
    """Write to a stream.

    Raises:
        grpc.aio.AioRpcError: the error that the stream ended with, also before this call.
        UnavailableError: if it ended without an error.
    """
    try:
        await call.write(message)
    except asyncio.InvalidStateError:  # gRPC's word for a stream that has ended
        await _raise_status(call)
        raise UnavailableError("gateway.link", "the server ended the stream", retry_after_s=1.0) from None


async def _raise_status(call: Any) -> None:
    """Raise the error with which a stream ended."""
    if await call.code() is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
        )
