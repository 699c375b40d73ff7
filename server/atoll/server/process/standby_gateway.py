"""Serves participants at a standby, which is a gateway of the active server (``atoll.server.gateway``).

It holds check-in streams, sends models, receives and folds updates, and sends exact partial sums to the active server.
An update that it acknowledges is in the bucket before the active server records it, so nothing is lost if the standby
fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import atoll.server
from atoll.server.config.config import ServerConfig
from atoll.server.errors import ServerError
from atoll.server.gateway.host.service import SERVICE as GATEWAY_SERVICE
from atoll.server.gateway.site.coordinator import Certificates, SiteCoordinator
from atoll.server.gateway.site.link import Link
from atoll.server.gateway.site.partial_upload import PartialUpload
from atoll.server.gateway.site.passing import PassingEnrolment
from atoll.server.gateway.site.relay import Relay
from atoll.server.gateway.site.worker import OwnCalls, Worker
from atoll.server.ingest.bucket_uploads import uploads_beside
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.file_node import FileNode
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.process.draining import drain
from atoll.server.process.front import BEHIND, Front
from atoll.server.process.listeners import Port, add_health_and_reflection, bind, make_server, server_credentials
from atoll.server.process.metrics_pages import ANSWER_S, MAIN
from atoll.server.process.standby_identity import LIFETIME_S, ActiveServer, StandbyIdentity
from atoll.server.process.warming import Warming
from atoll.server.process.worker_pool import WorkerPool
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import Authenticator
from atoll.server.rpc.download_room import DownloadRoom
from atoll.server.rpc.enrolment_rate import EnrolmentRate
from atoll.server.rpc.forwarding import Forwarding
from atoll.server.rpc.participation import SERVICE as PARTICIPATION_SERVICE
from atoll.server.rpc.participation import ParticipationService
from atoll.server.rpc.transfer import SERVICE as TRANSFER_SERVICE
from atoll.server.rpc.transfer import TransferService
from atoll.server.runs.sessions import Sessions
from atoll.server.stores import BlobStore
from atoll.server.stores.blob_place import open_chosen
from atoll.server.stores.server_turns import WorkPlace
from atoll.server.stores.store import PARTIALS_FOLDER, SPOOL_FOLDER
from atoll.server.telemetry.node import NodeFigures, of_nodes
from atoll.wire.messages import PROTOCOL
from atoll.wire.pacing import PING_ANSWER_S
from atoll.wire.v1 import gateway_pb2
from atoll.wire.v1.enrolment_pb2_grpc import add_EnrolmentServiceServicer_to_server

log = logging.getLogger(__name__)

THREADS = 8
PATIENCE_S = 15.0
"""Seconds without the active server during which this one still counts as ready; a take-over takes a few."""
REFUSED_S = 10.0
"""Seconds between two attempts while the active server does not accept this one."""
HANDOVER_S = 0.5
"""Seconds that open calls get to end when this server takes over; participants return to it."""
COME_BACK_S = 0.5
_RENEW_AT = 2 / 3
_FORWARDED = (
    "atoll.wire.v1.ControlService",
    "atoll.wire.v1.CoordinatorService",
    "atoll.wire.v1.RenewalService",
    GATEWAY_SERVICE,
    f"{PARTICIPATION_SERVICE}/CheckInOnce",
)
"""Services that only the active server answers; they have no check-in streams, and no bytes of updates or models."""
_ENDLESS = (f"{GATEWAY_SERVICE}/Attend", f"{GATEWAY_SERVICE}/Work", "atoll.wire.v1.ControlService/WatchRun")
"""Methods of these services whose calls would delay a stop."""


@dataclass(frozen=True)
class _Stores:
    """Blobs and uploads that are shared with the active server through the bucket, and local copies."""

    blobs: BlobStore
    spool: Spool
    partials: Path

    @classmethod
    def open(cls, config: ServerConfig) -> _Stores:
        """Open the stores; blocks."""
        blobs = open_chosen(config.data, config.storage.blob_settings)
        uploads = uploads_beside(blobs)
        if uploads is None:
            raise TypeError("a standby serves participants only with a bucket")
        partials = config.data / PARTIALS_FOLDER
        partials.mkdir(mode=0o700, exist_ok=True)
        for left in partials.iterdir():
            left.unlink()
        return cls(
            blobs, Spool(config.data / SPOOL_FOLDER, config.storage.room(config.data), uploads.of_others), partials
        )


class StandbyGateway:
    """Serves participants on this server's own ports while another is active. Only the event loop uses it.

    Call ``start`` once, then ``stop`` once.

    Args:
        config: the server's settings.
        place: addresses of the active server.

    Attributes:
        figures: the metrics of this process.
    """

    def __init__(self, config: ServerConfig, place: WorkPlace) -> None:
        self._config = config
        self._place = place
        self.figures = NodeFigures()
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="standby")
        self._sessions = Sessions(check_ins=config.check_in)
        self._front = Front(config.limits.enrolment_connections, self.figures.meter.refused)
        self._closing = contextlib.AsyncExitStack()
        self._listeners: list[grpc.aio.Server] = []
        self._running: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._workers: WorkerPool | None = None
        self._link: Link | None = None
        self._active: ActiveServer | None = None
        self._forwarding: Forwarding | None = None
        self._up_at = -math.inf
        self._leaving = ""

    async def start(self) -> None:
        """Open the ports.

        Raises:
            ServerError: if bucket, certificates or ports cannot be used; nothing is left running.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop(0.0, "the server does not start")
            raise

    def go_to(self, place: WorkPlace) -> None:
        """Connect to another server that is now active. Participants stay connected here meanwhile."""
        self._place = place
        if self._link is not None and self._active is not None:
            log.info("the active server is %s now", place.main)
            self._link.go_to(place.main, place.name)
            self._active.go_to(place)

    async def stop(self, grace_s: float, reason: str) -> None:
        """Tell participants to come back, give uploads and other calls time to end, and free the ports."""
        self._leaving = reason
        self._sessions.leave(reason, come_back_s=COME_BACK_S)
        left_s = await drain(self.figures.meter, grace_s)
        if self._forwarding is not None:
            self._forwarding.leave()
        workers, self._workers = self._workers, None
        stopping = [listener.stop(left_s) for listener in self._listeners]
        await asyncio.gather(*stopping, *([] if workers is None else [workers.stop(grace_s)]))
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._closing.aclose()
        self._executor.shutdown(wait=True)

    @property
    def problem(self) -> str:
        """The reason why participants cannot be served here now; empty if they can."""
        if self._leaving:
            return self._leaving
        if self._link is None:
            return "the ports are not open yet"
        if self._workers is not None and self._workers.running < self._config.workers:
            return f"{self._workers.running} of {self._config.workers} ingest workers run"
        if self._link.up:
            self._up_at = time.monotonic()
        elif time.monotonic() - self._up_at > PATIENCE_S:
            return f"there is no connection to {self._place.main}, the active server"
        return ""

    async def _renew(self) -> None:
        """Connect with a new certificate in time."""
        while True:
            await asyncio.sleep(LIFETIME_S * _RENEW_AT)
            self.go_to(self._place)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        identity = await loop.run_in_executor(self._executor, StandbyIdentity.open, self._config)
        stores = await loop.run_in_executor(self._executor, _Stores.open, self._config)
        self._closing.push_async_callback(loop.run_in_executor, self._executor, stores.spool.close)
        link = await self._listen(identity, stores)
        for listener in self._listeners:
            await listener.start()
        await self._front.start()
        self._link = link
        self._running = [
            asyncio.create_task(_keep(link), name="standby-link"),
            asyncio.create_task(self._renew(), name="standby-renewal"),
        ]
        self._closing.callback(Warming(self._executor).stop)
        self.figures.start()
        self._closing.callback(self.figures.stop)
        log.info("serving participants as %s for the active server, %s", identity.name, self._place.main)

    async def _listen(self, identity: StandbyIdentity, stores: _Stores) -> Link:
        """Create the services and bind their ports."""
        config, limits, front, refused = self._config, self._config.limits, self._front, self.figures.meter.refused
        certificates = Certificates()
        relay = Relay(self._sessions, certificates.of, time.time)
        names = config.certificate_names
        hello = gateway_pb2.GatewayHello(protocol=PROTOCOL, version=atoll.server.__version__, names=names)
        link = Link(
            self._place.main, identity.credentials, hello, relay, "this server, which stands by,", PING_ANSWER_S
        )
        link.go_to(self._place.main, self._place.name)
        link.hear_ping_s = self._compare_ping_s
        coordinator = SiteCoordinator(link, certificates, relay, None)
        authenticator = Authenticator(coordinator, Admission(limits), insecure=False)
        nodes = NodePool()
        transfer = self._transfers(identity, stores, link, coordinator, authenticator, nodes)
        main = make_server(
            Port.MAIN, limits, refused, authenticator.enter, authenticator.connections, ping_s=config.ping_s
        )
        enrolment = make_server(Port.ENROLMENT, limits, refused, front.enter, front.connections)
        self._listeners += [main, enrolment]
        self._closing.push_async_callback(front.close)
        authority = identity.authority
        mutual = server_credentials(authority, names, mutual=True, clock=time.time)
        plain = server_credentials(authority, names, mutual=False, clock=time.time)
        main_port = authenticator.connections.port = bind(main, config.host, config.port, mutual)
        participation = ParticipationService(
            sessions=self._sessions,
            coordinator=relay,
            authenticator=authenticator,
            transfer_address=await self._start_workers(coordinator, nodes, main_port),
            meter=self.figures.meter,
            ping_s=config.ping_s,
        )
        front.connections.port = bind(enrolment, BEHIND, 0, plain)
        enrol_port = config.port_after(main_port, 1, config.enrol_port)
        enrol_port = await front.bind(config.host, enrol_port, front.connections.port)
        active = self._active = ActiveServer(self._place, authority.certificate_pem, link.open_channel)
        self._closing.push_async_callback(active.close)
        forwarding = self._forwarding = Forwarding(_FORWARDED, active.channel, authenticator, _ENDLESS)
        main.add_generic_rpc_handlers((forwarding, participation.handler(), transfer.handler()))
        address = f"{config.advertised_host}:{main_port}"
        passing = PassingEnrolment(link.line, active, address, EnrolmentRate(limits), front.origin)
        add_EnrolmentServiceServicer_to_server(passing, enrolment)
        await add_health_and_reflection(main, [PARTICIPATION_SERVICE, TRANSFER_SERVICE, *_FORWARDED[:-1]])
        await add_health_and_reflection(enrolment, ["atoll.wire.v1.EnrolmentService"])
        hello.address, hello.enrolment_address = address, f"{config.advertised_host}:{enrol_port}"
        return link

    def _compare_ping_s(self, ping_s: float) -> None:
        """Warn if the ping intervals differ: participants would open two connections whenever they change servers."""
        if ping_s != self._config.ping_s:
            own = self._config.ping_s
            log.warning("ping_s is %g here and %g at %s: set the same at both", own, ping_s, self._place.main)

    async def _start_workers(self, coordinator: SiteCoordinator, nodes: NodePool, main_port: int) -> str:
        """Start the ingest workers, if there are several; returns the address of their shared port."""
        config = self._config
        if config.workers == 1:
            return ""
        workers = self._workers = WorkerPool(config, nodes, coordinator, self._executor, standing_by=True)
        port = await workers.start(config.port_after(main_port, 2, config.transfer_port))
        return f"{config.advertised_host}:{port}"

    def collect(self) -> Iterable[Metric]:
        """The metrics of this process and its workers; call it outside the event loop's thread."""
        nodes: list[tuple[str, Iterable[Metric]]] = [(MAIN, self.figures.registry.collect())]
        workers = self._workers
        if workers is not None:
            answers = asyncio.run_coroutine_threadsafe(workers.expositions(), self._loop).result(ANSWER_S)
            nodes += [(name, text_string_to_metric_families(text.decode())) for name, text in sorted(answers.items())]
        return of_nodes(nodes)

    def _transfers(
        self,
        identity: StandbyIdentity,
        stores: _Stores,
        link: Link,
        coordinator: SiteCoordinator,
        authenticator: Authenticator,
        nodes: NodePool,
    ) -> TransferService:
        """Receive and fold updates on the orders of the active server."""

        def shut_out(caller: Caller, error: ServerError) -> None:
            link.forget()
            authenticator.calls.end(caller, error)

        node = IngestNode(identity.name, stores.spool, self.figures.meter.folded)
        nodes.add(FileNode(node.name, OwnCalls(node, self._executor), stores.partials, self._executor))
        worker = Worker(
            node=node,
            nodes=nodes,
            node_of=coordinator.places.of,
            watched=self._config.workers > 1,
            spool=stores.spool,
            executor=self._executor,
            upload=PartialUpload(link.line, self._executor, lambda _: None),
            shut_out=shut_out,
        )
        link.worker = worker
        processes = 1 if self._config.workers == 1 else 1 + self._config.workers
        return TransferService(
            node=identity.name,
            coordinator=coordinator,
            authenticator=authenticator,
            blobs=stores.blobs,
            spool=stores.spool,
            executor=self._executor,
            room=DownloadRoom.of(self._config.limits, processes),
            meter=self.figures.meter,
        )


async def _keep(link: Link) -> None:
    """Keep the link, even while the active server does not accept this one, since another may soon be active."""
    while True:
        try:
            await link.run()
        except ServerError as error:
            log.warning("the active server does not accept this one: %s", error.logged)
        except Exception:  # without the link the participants here would wait for ever
            log.exception("the connection to the active server ended with an unforeseen error")
        await asyncio.sleep(REFUSED_S)
