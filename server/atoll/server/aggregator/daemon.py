"""The aggregator's process: gets its certificates, listens, keeps the link, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1._async import HealthServicer

import atoll.server
from atoll.processes.heap import keep_chunks
from atoll.server.aggregator.config import AggregatorConfig
from atoll.server.aggregator.credential import Credential
from atoll.server.aggregator.enrolling import Serving, due_in_s, enrol, renewed, server_certificate
from atoll.server.aggregator.pages import Traffic, open_pages
from atoll.server.aggregator.ping_interval import PingInterval
from atoll.server.errors import ServerError, SetupError, UnauthenticatedError
from atoll.server.gateway.site.coordinator import Certificates, SiteCoordinator
from atoll.server.gateway.site.link import Link
from atoll.server.gateway.site.models import Models
from atoll.server.gateway.site.partial_upload import PartialUpload
from atoll.server.gateway.site.passing import EnrolmentPort, PassingEnrolment, PassingRenewal
from atoll.server.gateway.site.relay import Relay
from atoll.server.gateway.site.worker import OwnCalls, Worker
from atoll.server.identity import Peer, ServerKeyPair
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.file_node import FileNode
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.process.draining import drain
from atoll.server.process.front import BEHIND, Front
from atoll.server.process.listeners import Port, add_health_and_reflection, bind, credentials_of, make_server
from atoll.server.process.warming import Warming
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import Authenticator
from atoll.server.rpc.download_room import DownloadRoom
from atoll.server.rpc.enrolment_rate import EnrolmentRate
from atoll.server.rpc.participation import SERVICE as PARTICIPATION_SERVICE
from atoll.server.rpc.participation import ParticipationService
from atoll.server.rpc.transfer import SERVICE as TRANSFER_SERVICE
from atoll.server.rpc.transfer import TransferService
from atoll.server.runs.sessions import Sessions
from atoll.server.stores import DirectoryBlobStore
from atoll.server.stores.blob_place import BLOBS_FOLDER
from atoll.server.stores.directory_lock import DirectoryLock
from atoll.server.stores.store import PARTIALS_FOLDER, SPOOL_FOLDER
from atoll.server.telemetry.node import NodeFigures
from atoll.wire.messages import PROTOCOL
from atoll.wire.v1 import gateway_pb2
from atoll.wire.v1.enrolment_pb2_grpc import (
    add_EnrolmentServiceServicer_to_server,
    add_RenewalServiceServicer_to_server,
)

log = logging.getLogger(__name__)

THREADS = 8
RENEWAL_RETRY_S = 60.0


@dataclass(frozen=True)
class AggregatorAddresses:
    """The addresses, host:port, of the aggregator and its server; ``metrics`` is empty if it is switched off."""

    main: str
    enrolment: str
    metrics: str
    upstream: str
    name: str


class AggregatorDaemon:
    """One aggregator. Call ``start`` once, then ``stop`` once; ``ended`` waits for a fatal error.

    Args:
        config: its settings.
        token: a join token of kind aggregator, for the first start.
    """

    def __init__(self, config: AggregatorConfig, token: str = "") -> None:
        self._config = config
        self._token = token
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="atoll")
        self._closing = contextlib.AsyncExitStack()
        self._sessions = Sessions()
        self._figures = NodeFigures()
        self._traffic = Traffic()
        self._front = Front(config.limits.enrolment_connections, self._figures.meter.refused)
        self._listeners: list[grpc.aio.Server] = []
        self._health: list[HealthServicer] = []
        self._running: list[asyncio.Task[None]] = []
        self._credential: Credential | None = None
        self._serving: Serving | None = None

    async def start(self) -> AggregatorAddresses:
        """Enrol if necessary, listen, and connect to the server.

        Raises:
            ServerError: if directory, token, certificates or ports cannot be used; nothing is left running.
        """
        keep_chunks()
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    async def ended(self) -> None:
        """Wait until the aggregator can no longer work.

        Raises:
            ServerError: the reason, namely that the server no longer accepts it.
        """
        done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Tell participants to come back, give uploads and other calls time to end, and close the state."""
        for health in self._health:
            await health.enter_graceful_shutdown()
        self._sessions.leave("the aggregator is stopping")
        left_s = await drain(self._figures.meter, self._config.drain_s)
        await asyncio.gather(*(listener.stop(left_s) for listener in self._listeners))
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._closing.aclose()
        self._executor.shutdown(wait=True)

    async def _start(self) -> AggregatorAddresses:
        config = self._config
        self._prepare_directory()
        credential = await self._identity()
        upstream = config.upstream or credential.address
        serving = self._serving = await server_certificate(credential, upstream, config.data)
        log.info(
            "aggregator %s of the server %s; certificate for %s", credential.name, upstream, ", ".join(serving.names)
        )
        pings = PingInterval(config.data, serving.ping_s)
        link, main_port, enrol_port = await self._build(credential, upstream, serving, pings)
        for listener in self._listeners:
            await listener.start()
        await self._front.start()
        self._running = [
            asyncio.create_task(link.run(), name="link"),
            asyncio.create_task(self._renew(link, upstream), name="renewal"),
        ]
        self._closing.callback(Warming(self._executor).stop)
        metrics = self._observe(link, main_port)
        host = self._advertised(serving)
        return AggregatorAddresses(f"{host}:{main_port}", f"{host}:{enrol_port}", metrics, upstream, credential.name)

    def _prepare_directory(self) -> None:
        data = self._config.data
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            partials = data / PARTIALS_FOLDER
            partials.mkdir(mode=0o700, exist_ok=True)
            lock = DirectoryLock.take(data)
            self._closing.callback(lock.release)
            for left in partials.iterdir():
                left.unlink()
        except OSError as error:
            raise SetupError(
                "aggregator.data", f"the directory {data} cannot be used: {error}", "choose another with --data"
            ) from error

    async def _identity(self) -> Credential:
        data = self._config.data
        credential = Credential.read(data)
        if credential is None:
            if not self._token:
                raise SetupError(
                    "aggregator.token",
                    f"{data} has no credential of an aggregator yet",
                    "give a join token with --token; `atoll token new --kind aggregator --serves HOST` makes one",
                )
            credential = await enrol(self._token, data)
        elif credential.peer.not_after <= time.time():
            credential = await renewed(credential, self._config.upstream or credential.address)
            credential.write(data)
        self._credential = credential
        return credential

    async def _build(
        self, credential: Credential, upstream: str, serving: Serving, pings: PingInterval
    ) -> tuple[Link, int, int]:
        """Create the services and bind their ports; returns the link, the main port and the enrolment port."""
        config, limits, meter = self._config, self._config.limits, self._figures.meter
        room = config.room
        spool, blobs = Spool(config.data / SPOOL_FOLDER, room), DirectoryBlobStore(config.data / BLOBS_FOLDER)
        self._closing.callback(blobs.close)
        self._closing.callback(spool.close)
        certificates = Certificates()
        relay = Relay(self._sessions, certificates.of, time.time)
        hello = gateway_pb2.GatewayHello(protocol=PROTOCOL, version=atoll.server.__version__)
        link = Link(upstream, self._channel_credentials, hello, relay)
        models = Models(blobs, link.line, self._executor, config.keep_models, self._traffic.fetched)
        await models.start()
        self._closing.push_async_callback(models.close)
        coordinator = SiteCoordinator(link, certificates, relay, models)
        authenticator = Authenticator(coordinator, Admission(limits), insecure=False)

        def shut_out(caller: Caller, error: ServerError) -> None:
            link.forget()
            authenticator.calls.end(caller, error)

        node = IngestNode(credential.name, spool, meter.folded)
        nodes = NodePool()
        nodes.add(FileNode(node.name, OwnCalls(node, self._executor), config.data / PARTIALS_FOLDER, self._executor))
        worker = Worker(
            node=node,
            nodes=nodes,
            node_of=coordinator.places.of,
            spool=spool,
            executor=self._executor,
            upload=PartialUpload(link.line, self._executor, self._traffic.sent),
            shut_out=shut_out,
        )
        transfer = TransferService(
            node=credential.name,
            coordinator=coordinator,
            authenticator=authenticator,
            blobs=blobs,
            spool=spool,
            executor=self._executor,
            room=DownloadRoom.of(limits, 1),
            meter=meter,
        )
        participation = ParticipationService(
            sessions=self._sessions,
            coordinator=relay,
            authenticator=authenticator,
            transfer_address="",
            meter=self._figures.meter,
            takes_unary=False,
            ping_s=pings.seconds,
        )
        link.worker, link.hear_ping_s = worker, pings.hear
        self._traffic.link, self._traffic.participants = link, lambda: len(self._sessions)
        main_port, enrol_port = await self._listen(
            credential, authenticator, participation, transfer, serving, link, pings.seconds
        )
        hello.address = f"{self._advertised(serving)}:{main_port}"
        hello.enrolment_address = f"{self._advertised(serving)}:{enrol_port}"
        return link, main_port, enrol_port

    async def _listen(
        self,
        credential: Credential,
        authenticator: Authenticator,
        participation: ParticipationService,
        transfer: TransferService,
        serving: Serving,
        link: Link,
        ping_s: float,
    ) -> tuple[int, int]:
        config, limits, refused, front = self._config, self._config.limits, self._figures.meter.refused, self._front
        ca = credential.ca_certificate.encode()
        main = make_server(Port.MAIN, limits, refused, authenticator.enter, authenticator.connections, ping_s=ping_s)
        enrolment = make_server(Port.ENROLMENT, limits, refused, front.enter, front.connections)
        self._listeners += [main, enrolment]
        self._closing.push_async_callback(front.close)
        main_port = bind(main, config.host, config.port, credentials_of(self._server_pair, ca))
        authenticator.connections.port = main_port
        enrol_port = config.port_after(main_port, 1, config.enrol_port)
        front.connections.port = bind(enrolment, BEHIND, 0, credentials_of(self._server_pair, None))
        enrol_port = await front.bind(config.host, enrol_port, front.connections.port)
        server = EnrolmentPort(credential.enrolment_address, ca)
        self._closing.push_async_callback(server.close)
        main.add_generic_rpc_handlers((participation.handler(), transfer.handler()))
        add_RenewalServiceServicer_to_server(PassingRenewal(server, authenticator), main)
        address = f"{self._advertised(serving)}:{main_port}"
        passing = PassingEnrolment(link.line, server, address, EnrolmentRate(limits), front.origin)
        add_EnrolmentServiceServicer_to_server(passing, enrolment)
        services = [PARTICIPATION_SERVICE, TRANSFER_SERVICE, "atoll.wire.v1.RenewalService"]
        self._health = [
            await add_health_and_reflection(main, services),
            await add_health_and_reflection(enrolment, ["atoll.wire.v1.EnrolmentService"]),
        ]
        return main_port, enrol_port

    def _observe(self, link: Link, main_port: int) -> str:
        config = self._config
        if not config.metrics:
            return ""
        self._figures.registry.register(self._traffic)
        port = config.port_after(main_port, 3, config.metrics_port)
        endpoint = open_pages(config.metrics_host, port, self._figures, link, config.room.shortage)
        self._closing.callback(endpoint.close)
        self._figures.start()
        self._closing.callback(self._figures.stop)
        return f"{config.metrics_host}:{endpoint.port}"

    async def _renew(self, link: Link, upstream: str) -> None:
        """Renew both certificates in time while the aggregator runs.

        Raises:
            UnauthenticatedError: if its certificate has expired, and the server does not renew it.
        """
        while True:
            credential, serving = self._credential, self._serving
            if credential is None or serving is None:
                raise RuntimeError("start first")
            peer: Peer = credential.peer
            own_s = due_in_s(peer.not_before, peer.not_after)
            serving_s = due_in_s(serving.not_before, serving.pair.not_after)
            await asyncio.sleep(min(own_s, serving_s))
            ended = peer.not_after <= time.time()
            try:
                if own_s <= serving_s:
                    self._credential = await renewed(credential, upstream)
                    link.reconnect()  # even if the disk is full, since the old certificate expires
                    self._credential.write(self._config.data)
                else:
                    self._serving = await server_certificate(credential, upstream, self._config.data, fresh=True)
                log.info("certificate renewed")
            except (ServerError, OSError) as error:
                if ended and isinstance(error, UnauthenticatedError):
                    raise  # it is too late to renew, or it was revoked: nothing will work any more
                said = error.logged if isinstance(error, ServerError) else error
                log.warning("a certificate could not be renewed or kept, it is tried again later: %s", said)
                await asyncio.sleep(RENEWAL_RETRY_S)

    def _server_pair(self) -> ServerKeyPair:
        if self._serving is None:
            raise RuntimeError("start first")
        return self._serving.pair

    def _channel_credentials(self) -> grpc.ChannelCredentials:
        if self._credential is None:
            raise RuntimeError("start first")
        return self._credential.channel_credentials()

    def _advertised(self, serving: Serving) -> str:
        return self._config.advertise or serving.names[0]
