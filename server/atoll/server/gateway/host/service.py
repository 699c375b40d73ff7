"""GatewayService, the server's service for gateways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass

import atoll.server
from atoll.server.access.server_certificates import ServerCertificates
from atoll.server.errors import InvalidRequestError, NotFoundError, ServerError, UnavailableError
from atoll.server.gateway.host.attendance import Attendance, SharedParts
from atoll.server.gateway.host.bindings import Bindings
from atoll.server.gateway.host.bound_coordinator import BoundCoordinator
from atoll.server.gateway.host.driving import Driving
from atoll.server.gateway.host.gateways import Gateway
from atoll.server.gateway.host.node import HostedNode
from atoll.server.gateway.host.orders import STALLED_S, Orders
from atoll.server.gateway.host.receipts import Receipts
from atoll.server.gateway.host.streams import end, ended_with_certificate
from atoll.server.gateway.pieces import Piece
from atoll.server.ingest.node_pool import NodePool
from atoll.server.rpc.authentication import Authenticator, Context, Watch
from atoll.server.rpc.enrolment import Redeemer
from atoll.server.rpc.participation import HELLO_S
from atoll.server.runs.sessions import TAKEN_OVER_S, Sessions
from atoll.server.stores.server_names import MOST_NAMES
from atoll.server.telemetry.refusal_log import one_line
from atoll.server.threads import in_thread
from atoll.wire.messages import PROTOCOL
from atoll.wire.pacing import PING_S
from atoll.wire.v1 import gateway_pb2
from atoll.wire.v1.gateway_pb2_grpc import GatewayServiceServicer

log = logging.getLogger(__name__)

SERVICE = "atoll.wire.v1.GatewayService"
MAX_ADDRESS_CHARS = 300
MAX_SOURCE_CHARS = 64
ASK_S = 2.0
"""Seconds between two probes of a gateway, which ask for its progress."""
SILENT_S = 10.0
"""Seconds without an answer after which a standby's work goes to another node; all its uploads are in the bucket."""
AGGREGATOR_SILENT_S = STALLED_S
"""The same for an aggregator, whose line may be slow and busy with a sum; afterwards it counts as disconnected."""


@dataclass(frozen=True)
class Issuers:
    """The issuers of certificates: server certificates of aggregators, and certificates of newcomers at gateways."""

    servers: ServerCertificates
    newcomers: Redeemer


class GatewayService(GatewayServiceServicer):
    """The handlers.

    Args:
        coordinator: the coordinator.
        sessions: the sessions of this server.
        nodes: the ingest nodes, to which connected gateways are added.
        bindings: the participants that a gateway may act for.
        authenticator: identifies gateways.
        receipts: receives partial sums.
        issuers: issue certificates.
        executor: threads for disk access and arithmetic.

    Attributes:
        addresses: enrolment address of each connected aggregator, by id.
        server_names: host names of the servers of this federation that are known, the newest last.
        remember_names: records host names of a server where later active servers find them; returns all known ones.
        ping_s: this server's interval of keepalive pings, which gateways use for their participants.
    """

    def __init__(
        self,
        *,
        coordinator: Driving,
        sessions: Sessions,
        nodes: NodePool,
        bindings: Bindings,
        authenticator: Authenticator,
        receipts: Receipts,
        issuers: Issuers,
        executor: Executor,
    ) -> None:
        self.addresses: dict[str, str] = {}
        self.server_names: dict[str, None] = {}
        self.remember_names: Callable[[Collection[str]], Awaitable[Collection[str]]] = _as_given
        self.ping_s = PING_S
        self._coordinator = coordinator
        self._sessions = sessions
        self._nodes = nodes
        self._bindings = bindings
        self._authenticator = authenticator
        self._receipts = receipts
        self._issuers = issuers
        self._executor = executor
        self._leaving = False
        self._attending: dict[Gateway, Attendance] = {}

    def leave(self) -> None:
        """Prepare to stop: gateways connect to the next server, and their participants stay with them."""
        self._leaving = True
        for attendance in self._attending.values():
            end(attendance.outbox)

    def _refuse_when_leaving(self) -> None:
        if self._leaving:
            raise UnavailableError("server.stopping", "the server is stopping", "try again", retry_after_s=1.0)

    async def Attend(
        self, request_iterator: AsyncIterator[gateway_pb2.AttendRequest], context: Context
    ) -> AsyncIterator[gateway_pb2.AttendResponse]:
        """Hold the sessions of a gateway's participants until it disconnects; a newer stream replaces an older one."""
        gateway = await self._caller(context)
        self._refuse_when_leaving()
        hello = await _hello(request_iterator)
        self._coordinator.run_names()  # sessions need resumed runs
        identities = BoundCoordinator(self._coordinator, self._bindings, gateway)
        attendance = Attendance(gateway, self._sessions, self._coordinator, identities, self._authenticator.admission)
        await self._replace(gateway, attendance)
        address = one_line(hello.enrolment_address, MAX_ADDRESS_CHARS)
        if gateway.is_server:
            self.know_names(await self.remember_names(hello.names))
        else:
            self.addresses[gateway.id] = address
        log.info("%s connected, enrolment address %s", gateway, address)
        reader = asyncio.create_task(_read(request_iterator, attendance))
        try:
            with ended_with_certificate(context, lambda: end(attendance.outbox)):
                yield self._welcome()
                async for response in _sent(attendance):
                    yield response
            if attendance.replaced:
                raise _taken_over(gateway)
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await attendance.close()
            if self._attending.get(gateway) is attendance:
                del self._attending[gateway]
                self.addresses.pop(gateway.id, None)
                log.info("%s disconnected", gateway)

    def know_names(self, names: Collection[str]) -> None:
        """Note host names of servers, which no aggregator may have."""
        for name in names:
            self.server_names.pop(name, None)
            self.server_names[name] = None
        while len(self.server_names) > MOST_NAMES:
            del self.server_names[next(iter(self.server_names))]

    def _welcome(self) -> gateway_pb2.AttendResponse:
        version = atoll.server.__version__
        welcome = gateway_pb2.GatewayWelcome(protocol=PROTOCOL, server_version=version, ping_s=self.ping_s)
        return gateway_pb2.AttendResponse(welcome=welcome)

    async def _replace(self, gateway: Gateway, attendance: Attendance) -> None:
        """Take over from an older stream of the gateway, whose sessions end first."""
        older, self._attending[gateway] = self._attending.get(gateway), attendance
        if older is not None:
            older.replaced = True
            await older.close()
            end(older.outbox)

    async def Work(
        self, request_iterator: AsyncIterator[gateway_pb2.WorkRequest], context: Context
    ) -> AsyncIterator[gateway_pb2.WorkResponse]:
        """Send a gateway its orders until it disconnects."""
        gateway = await self._caller(context)
        self._refuse_when_leaving()
        runs = self._coordinator.run_names()
        orders = Orders(str(gateway))
        node = HostedNode(gateway, orders, self._receipts, self._executor)
        reader = asyncio.create_task(_outcomes(request_iterator, orders))
        keeping = asyncio.create_task(_keep_only(node, runs))
        tasks = [reader, keeping, asyncio.create_task(self._end_when_silent(gateway, node, orders))]
        self._nodes.add_gateway(node)
        try:
            with ended_with_certificate(context, lambda: end(orders.outbox)):
                while (order := await orders.outbox.get()) is not None:
                    yield order
            if reader.done():
                reader.result()
        finally:
            self._nodes.remove_gateway(node)
            orders.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_when_silent(self, gateway: Gateway, node: HostedNode, orders: Orders) -> None:
        """Give up a gateway that no longer answers, and end its streams."""
        silent_s = SILENT_S if gateway.is_server else AGGREGATOR_SILENT_S
        try:
            while True:
                await orders.do(gateway_pb2.WorkResponse(), silent_s)
                await asyncio.sleep(ASK_S)
        except UnavailableError as error:
            log.warning("%s; it counts as disconnected", error.detail.message)
        self._nodes.remove_gateway(node)
        orders.close()
        end(orders.outbox)
        attendance = self._attending.get(gateway)
        if attendance is not None:
            end(attendance.outbox)
            await attendance.close()

    async def GetPartialStatus(
        self, request: gateway_pb2.GetPartialStatusRequest, context: Context
    ) -> gateway_pb2.GetPartialStatusResponse:
        """List the pieces of a partial sum that the server holds."""
        gateway = await self._caller(context)
        return gateway_pb2.GetPartialStatusResponse(next=self._receipts.get(gateway.node, request.name).next)

    async def PutPartial(
        self, request_iterator: AsyncIterator[gateway_pb2.PutPartialRequest], context: Context
    ) -> gateway_pb2.PutPartialResponse:
        """Write the pieces of a partial sum."""
        gateway = await self._caller(context)
        receipt = None
        async with contextlib.aclosing(Watch(self._authenticator, context).over(request_iterator)) as messages:
            async for message in messages:
                if receipt is None:
                    receipt = self._receipts.get(gateway.node, message.name)
                if message.payload:
                    piece = Piece(message.shift, message.width, message.payload)
                    await in_thread(self._executor, receipt.add, message.index, piece)
                if message.digest:
                    await in_thread(self._executor, receipt.finish, message.digest)
        if receipt is None or not receipt.complete:
            raise InvalidRequestError("partial.order", "the stream ended before its digest", "ask for the status")
        return gateway_pb2.PutPartialResponse()

    async def _caller(self, context: Context) -> Gateway:
        return Gateway.of(await self._authenticator.gateway(context))

    async def CertifyServer(
        self, request: gateway_pb2.CertifyServerRequest, context: Context
    ) -> gateway_pb2.CertifyServerResponse:
        """Issue a server certificate for the host names that the gateway was enrolled with."""
        gateway = await self._authenticator.aggregator(context)
        pem, names = await self._issuers.servers.certify(gateway, request.csr_pem)
        return gateway_pb2.CertifyServerResponse(certificate_pem=pem, names=names, ping_s=self.ping_s)

    async def Enrol(
        self, request: gateway_pb2.GatewayServiceEnrolRequest, context: Context
    ) -> gateway_pb2.GatewayServiceEnrolResponse:
        """Redeem a newcomer's join token; the gateway reports the address that the newcomer called from."""
        gateway = await self._caller(context)
        source = one_line(request.source, MAX_SOURCE_CHARS) or "an unknown address"
        response = await self._issuers.newcomers.redeem(request.request, source, gateway.through)
        return gateway_pb2.GatewayServiceEnrolResponse(response=response)


def _taken_over(gateway: Gateway) -> UnavailableError:
    """The error that ends a stream because a newer one replaced it. Only another process of the gateway reads it."""
    return UnavailableError(
        "gateway.taken_over",
        f"another process connected as {gateway}",
        "run one process with this identity, and none on a copy of its directory",
        retry_after_s=TAKEN_OVER_S,
    )


async def _as_given(names: Collection[str]) -> Collection[str]:
    return names


async def _hello(requests: AsyncIterator[gateway_pb2.AttendRequest]) -> gateway_pb2.GatewayHello:
    """The first message of a stream."""
    try:
        async with asyncio.timeout(HELLO_S):
            first = await anext(aiter(requests), None)
    except TimeoutError:
        first = None
    if first is None or first.WhichOneof("message") != "hello" or first.hello.protocol < 1:
        raise InvalidRequestError("gateway.order", "the first message of this stream must be hello")
    return first.hello


async def _read(requests: AsyncIterator[gateway_pb2.AttendRequest], attendance: Attendance) -> None:
    try:
        async for request in requests:
            await attendance.take(request)
    finally:
        end(attendance.outbox)


async def _sent(attendance: Attendance) -> AsyncIterator[gateway_pb2.AttendResponse]:
    """The messages for the gateway, until the stream ends."""
    parts = SharedParts()
    while (item := await attendance.outbox.get()) is not None:
        number, said = item
        if said is None or isinstance(said, ServerError):
            detail = None if said is None else said.detail.to_proto()
            yield gateway_pb2.AttendResponse(ended=gateway_pb2.SessionEnded(session=number, error=detail))
        else:
            for message in parts.messages(number, said):
                yield message


async def _outcomes(requests: AsyncIterator[gateway_pb2.WorkRequest], orders: Orders) -> None:
    try:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("message") != "hello":
            raise InvalidRequestError("gateway.order", "the first message of this stream must be hello")
        async for request in requests:
            orders.take(request)
    finally:
        end(orders.outbox)


async def _keep_only(node: HostedNode, runs: list[str]) -> None:
    try:
        await node.keep_only(runs)
    except (UnavailableError, NotFoundError) as error:
        log.info("%s keeps old uploads for now: %s", node.name, error)
