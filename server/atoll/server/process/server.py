"""The daemon: opens the state, listens, resumes the runs, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpc.aio
from grpc_health.v1._async import HealthServicer

from atoll.processes.heap import keep_chunks
from atoll.server.access.audit_log import AuditLog, OperatorDownloads
from atoll.server.access.certificates import CertificateBook
from atoll.server.access.operator_file import OperatorFile
from atoll.server.access.operators import Operators
from atoll.server.access.project_book import ProjectBook
from atoll.server.access.server_certificates import ServerCertificates
from atoll.server.backup import last_restoration
from atoll.server.config.config import ServerConfig
from atoll.server.gateway.host.bindings import Bindings
from atoll.server.gateway.host.bound_coordinator import GatewayCoordinatorService
from atoll.server.gateway.host.receipts import Receipts
from atoll.server.gateway.host.service import SERVICE as GATEWAY_SERVICE
from atoll.server.gateway.host.service import GatewayService
from atoll.server.identity import OPERATOR_FILE, Authority
from atoll.server.ingest.bucket_uploads import uploads_beside
from atoll.server.ingest.node import IngestNode
from atoll.server.ingest.node_pool import LocalNode, NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.privacy import ledger
from atoll.server.process.clock import SteadyClock
from atoll.server.process.draining import drain
from atoll.server.process.front import BEHIND, Front
from atoll.server.process.listeners import Port, add_health_and_reflection, bind, make_server, server_credentials
from atoll.server.process.logs import ContextFilter, kept_in
from atoll.server.process.metrics_pages import MetricsPages
from atoll.server.process.sign_in_port import SignInPort, open_sign_in_port
from atoll.server.process.succession import Succession
from atoll.server.process.warming import Warming
from atoll.server.process.worker_pool import WorkerPool
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import Authenticator
from atoll.server.rpc.control import ControlService
from atoll.server.rpc.download_room import DownloadRoom
from atoll.server.rpc.enrolment import EnrolmentService, RenewalService
from atoll.server.rpc.enrolment_rate import EnrolmentRate
from atoll.server.rpc.operator_handlers import Access, ServerFacts
from atoll.server.rpc.participation import ParticipationService
from atoll.server.rpc.scoping import Scopes
from atoll.server.rpc.supervision import Supervision
from atoll.server.rpc.transfer import SERVICE as TRANSFER_SERVICE
from atoll.server.rpc.transfer import TransferService
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.evaluators import load_evaluators
from atoll.server.runs.services import Services
from atoll.server.runs.sessions import Sessions
from atoll.server.stores import Reader, Store, database_place, project_roles
from atoll.server.stores import operators as stored_operators
from atoll.server.stores.store import PARTIALS_FOLDER, SPOOL_FOLDER
from atoll.server.telemetry.node import NodeFigures
from atoll.server.telemetry.recent_log import RecentLog
from atoll.server.telemetry.rounds import RoundFigures
from atoll.server.telemetry.run_telemetry import RunTelemetry
from atoll.server.telemetry.tracing import tracer_of
from atoll.wire.loopback import is_loopback
from atoll.wire.v1.control_pb2_grpc import add_ControlServiceServicer_to_server
from atoll.wire.v1.enrolment_pb2_grpc import (
    add_EnrolmentServiceServicer_to_server,
    add_RenewalServiceServicer_to_server,
)
from atoll.wire.v1.gateway_pb2_grpc import add_GatewayServiceServicer_to_server
from atoll.wire.v1.ingest_pb2_grpc import add_CoordinatorServiceServicer_to_server

log = logging.getLogger(__name__)

LOCAL_NODE = "main"
THREADS = 8

_MAIN_SERVICES = (
    "atoll.wire.v1.ParticipationService",
    "atoll.wire.v1.RenewalService",
    "atoll.wire.v1.ControlService",
    GATEWAY_SERVICE,
)


@dataclass(frozen=True)
class Addresses:
    """The daemon's addresses, host:port.

    ``transfer`` is empty if transfers use the main port, ``metrics`` if no metrics are served, ``sign_in`` if operators
    cannot sign in.
    """

    main: str
    enrolment: str
    transfer: str
    operator: Path | None
    metrics: str = ""
    sign_in: str = ""


class Daemon:
    """One server process and its workers. Call ``start`` once, then ``stop`` once.

    Args:
        config: its settings.
        returns: whether this server was at work before, and had to stop: ``start`` waits for a database or bucket that
            does not answer.
    """

    def __init__(self, config: ServerConfig, *, returns: bool = False) -> None:
        self._config = config
        self._clock = time.time
        self._started_at = time.time()
        self._steady = SteadyClock()
        self._sessions = Sessions(self._steady, config.check_in)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="atoll")
        self._closing = contextlib.AsyncExitStack()
        self._coordinator: Coordinator | None = None
        self._listeners: list[grpc.aio.Server] = []
        self._health: list[HealthServicer] = []
        self._figures = NodeFigures()
        self._front = Front(config.limits.enrolment_connections, self._figures.meter.refused)
        self._fronts = [self._front]
        self._workers: WorkerPool | None = None
        self._gateways: GatewayService | None = None
        self._succession = Succession(config, returns=returns)
        self._recent_log = RecentLog()
        self._recent_log.addFilter(ContextFilter())
        self._serving = False

    async def start(self) -> Addresses:
        """Open the state, listen, and resume every run.

        Raises:
            StandbyEndedError: if ``stop_waiting`` was called while another server was at work.
            ServerError: if state, ports or evaluators cannot be used; nothing is left running.
        """
        keep_chunks()
        try:
            return await self._start()
        except BaseException:
            await self.stop()
            raise

    @property
    def over(self) -> asyncio.Event:
        """Set when another server has taken over, or may have: stop this one; ``why_over`` says why."""
        return self._succession.over

    @property
    def why_over(self) -> str:
        """A sentence about the end of this server's turn."""
        return self._succession.reason

    def stop_waiting(self) -> None:
        """End a ``start`` that waits for another server to fail; later than that it does nothing."""
        self._succession.standby.end()

    async def stop(self) -> None:
        """Send participants away, let work under way end for up to ``drain_s``, and close the state."""
        left_s = await self._drain() if self._serving else 0.0
        await asyncio.gather(*(listener.stop(left_s) for listener in self._listeners))
        await self._succession.stop()
        await self._closing.aclose()
        self._executor.shutdown(wait=True)
        self._succession.close_pages()

    async def _drain(self) -> float:
        """Send participants away, and let work under way end; returns the seconds that are left of ``drain_s``."""
        coordinator = self._coordinator
        if coordinator is None:
            raise TypeError(coordinator)
        self._serving = False
        for health in self._health:
            await health.enter_graceful_shutdown()
        coordinator.leave()
        self._sessions.leave()
        left_s = 0.0
        if not self.over.is_set():  # else another server has taken over, and this one acknowledges nothing any more
            left_s = await drain(self._figures.meter, self._config.drain_s, coordinator.settled)
        if self._workers is not None:
            await self._workers.stop()
        if self._gateways is not None:
            self._gateways.leave()
        return left_s

    async def _start(self) -> Addresses:
        config, loop = self._config, asyncio.get_running_loop()
        self._closing.enter_context(kept_in(self._recent_log))
        evaluators = load_evaluators(config.evaluators)
        room = config.storage.room(config.data)
        if database_place.find(config.data) is None:
            room.require("a new server")
        log.info("opening the database")
        storage = config.storage
        opening = partial(
            Store.open,
            config.data,
            url=storage.database,
            blob_settings=storage.blob_settings,
            standby=self._succession.standby,
        )
        store = await loop.run_in_executor(self._executor, opening)
        self._closing.callback(store.close)
        rounds, tracer = RoundFigures(), tracer_of()
        if tracer is not None:
            self._closing.push_async_callback(loop.run_in_executor, self._executor, tracer.close)
        await self._succession.begin(store, rounds)
        await _verify_ledgers(store.reader)
        authority = Authority.open(config.data / "ca", now=self._clock())
        restored_at = last_restoration(config.data)
        book = CertificateBook(
            authority,
            store.writer,
            store.reader,
            self._clock,
            lifetime_s=config.certificate_lifetime_s,
            restored_at=restored_at,
            most_per_lifetime=config.limits.certificates_per_lifetime,
            grace_s=config.renewal_grace_s,
        )
        spool = Spool(config.data / SPOOL_FOLDER, room, uploads_beside(store.blobs))
        self._closing.push_async_callback(loop.run_in_executor, self._executor, spool.close)
        services = Services(
            writer=store.writer,
            reader=store.reader,
            blobs=store.blobs,
            spool=spool,
            sessions=self._sessions,
            nodes=NodePool(config.aggregator_silence_s),
            executor=self._executor,
            evaluators=evaluators,
            clock=self._steady,
            silence_s=config.silence_s,
            silo_silence_s=config.silo_silence_s,
            keep_models=config.keep_models,
            room=room,
            observer=RunTelemetry(rounds, tracer),
            share_models=config.share_models,
            limits=config.limits,
        )
        audit_log = AuditLog(store.writer, self._clock)
        downloads = OperatorDownloads(audit_log)
        coordinator = self._coordinator = Coordinator(
            services, book, config.storage, insecure=config.insecure, restored_at=restored_at, downloads=downloads
        )
        addresses = await self._listen(services, coordinator, book, authority, audit_log, downloads)
        self._closing.push_async_callback(coordinator.stop)
        await coordinator.start()
        log.info("runs in work: %d; opening the ports", len(coordinator.in_work()))
        if shortage := room.shortage():
            log.warning("no room for uploads and new rounds: %s; they wait until there is some", shortage)
        for doubt in config.doubts:
            log.warning("%s", doubt)
        for listener in self._listeners:
            await listener.start()
        for front in self._fronts:
            await front.start()
        self._serving = True
        ports = [int(address.rpartition(":")[2]) for address in (addresses.main, addresses.enrolment)]
        await self._succession.announce(store, *ports)
        self._closing.callback(Warming(self._executor).stop)
        return replace(addresses, metrics=self._observe(services, coordinator, authority, rounds, addresses))

    def _observe(
        self,
        services: Services,
        coordinator: Coordinator,
        authority: Authority,
        rounds: RoundFigures,
        addresses: Addresses,
    ) -> str:
        """Open the port for metrics and health; returns its address, or "" if it is switched off."""
        config = self._config
        if not config.metrics:
            return ""
        observatory = MetricsPages(
            config=config,
            services=services,
            coordinator=coordinator,
            authority=None if config.insecure else authority,
            node=self._figures,
            rounds=rounds,
            executor=self._executor,
            workers=self._workers,
            standbys=lambda: self._succession.standbys,
            serving=lambda: self._serving,
        )
        main_port = int(addresses.main.rpartition(":")[2])
        endpoint = observatory.open(config.metrics_host, config.port_after(main_port, 3, config.metrics_port))
        self._closing.callback(endpoint.close)
        self._figures.start()
        self._closing.callback(self._figures.stop)
        if not is_loopback(config.metrics_host):
            log.warning("metrics and health are open to any host reaching %s:%d", config.metrics_host, endpoint.port)
        return f"{config.metrics_host}:{endpoint.port}"

    async def _listen(
        self,
        services: Services,
        coordinator: Coordinator,
        book: CertificateBook,
        authority: Authority,
        audit_log: AuditLog,
        downloads: OperatorDownloads,
    ) -> Addresses:
        config = self._config
        names = config.certificate_names
        mutual = plain = None
        if not config.insecure:
            mutual = server_credentials(authority, names, mutual=True, clock=self._clock)
            plain = server_credentials(authority, names, mutual=False, clock=self._clock)
        refused = self._figures.meter.refused
        authenticator = Authenticator(coordinator, Admission(config.limits), insecure=config.insecure)
        book.listen(authenticator.calls.end)

        async def administrators(project: str | None) -> Sequence[str]:
            if project is not None:
                return await services.reader.run(project_roles.administrators, project, now=self._clock())
            return await services.reader.run(stored_operators.administrators, now=self._clock())

        projects = ProjectBook(services.writer, services.reader, self._clock)

        def supervise(by: Authenticator) -> Supervision:
            return Supervision(by, audit_log, administrators, Scopes(projects, services.reader))

        main = make_server(
            Port.MAIN,
            config.limits,
            refused,
            authenticator.enter,
            authenticator.connections,
            within=(supervise(authenticator),),
        )
        front = self._front
        self._closing.push_async_callback(front.close)
        enrolment = make_server(Port.ENROLMENT, config.limits, refused, front.enter, front.connections)
        self._listeners += [main, enrolment]
        main_port = authenticator.connections.port = bind(main, config.host, config.port, mutual)
        enrol_port = config.port_after(main_port, 1, config.enrol_port)
        front.connections.port = bind(enrolment, BEHIND, 0, plain)
        enrol_port = await front.bind(config.host, enrol_port, front.connections.port)
        main_address = f"{config.advertised_host}:{main_port}"
        enrol_address = f"{config.advertised_host}:{enrol_port}"
        transfer_address = await self._add_transfer(main, services, coordinator, authenticator, main_port)
        participation = ParticipationService(
            sessions=self._sessions,
            coordinator=coordinator,
            authenticator=authenticator,
            transfer_address=transfer_address,
            meter=self._figures.meter,
        )
        file = None
        if not config.insecure:
            path = config.data / OPERATOR_FILE
            file = OperatorFile(path, main_address, authority, services.writer, services.reader, self._clock)
        operators = Operators(
            authority=authority,
            reader=services.reader,
            clock=self._clock,
            book=book,
            nodes=services.nodes,
            file=file,
        )
        gateways = self._gateways = self._serve_gateways(main, services, coordinator, authenticator, authority)
        control = partial(
            ControlService,
            coordinator=coordinator,
            access=Access(book, operators, projects),
            services=services,
            facts=ServerFacts(self._started_at, config.workers, config.data, enrol_address, names, gateways.addresses),
            recent_log=self._recent_log,
            downloads=downloads,
        )
        sign_in = ""
        if config.oidc.issuer is not None and not config.insecure:
            own = server_credentials(authority, names, mutual=False, clock=self._clock)  # gRPC: one object for a port
            port = await open_sign_in_port(config, config.oidc.issuer, coordinator, supervise, refused, own, main_port)
            sign_in = self._serve_sign_in(port, control, self._transfer(services, coordinator, port.authenticator))
        main.add_generic_rpc_handlers((participation.handler(),))
        add_RenewalServiceServicer_to_server(RenewalService(book, authenticator), main)
        add_ControlServiceServicer_to_server(control(authenticator=authenticator), main)
        rate = EnrolmentRate(config.limits)
        add_EnrolmentServiceServicer_to_server(EnrolmentService(book, main_address, rate, front.origin), enrolment)
        self._health = [
            await add_health_and_reflection(main, [*_MAIN_SERVICES, TRANSFER_SERVICE]),
            await add_health_and_reflection(enrolment, ["atoll.wire.v1.EnrolmentService"]),
        ]
        if file is not None:
            await file.start()
            self._closing.push_async_callback(file.stop)
        return Addresses(
            main_address, enrol_address, transfer_address, None if file is None else file.path, sign_in=sign_in
        )

    def _serve_gateways(
        self,
        main: grpc.aio.Server,
        services: Services,
        coordinator: Coordinator,
        authenticator: Authenticator,
        authority: Authority,
    ) -> GatewayService:
        """Serve aggregators on the main port."""
        bindings = Bindings(services.reader)
        service = GatewayService(
            coordinator=coordinator,
            sessions=self._sessions,
            nodes=services.nodes,
            bindings=bindings,
            authenticator=authenticator,
            receipts=Receipts(self._config.data / PARTIALS_FOLDER),
            certificates=ServerCertificates(authority, services.reader, self._clock),
            executor=self._executor,
        )
        add_GatewayServiceServicer_to_server(service, main)
        nodes_of_gateways = GatewayCoordinatorService(coordinator, bindings, authenticator)
        add_CoordinatorServiceServicer_to_server(nodes_of_gateways, main)
        return service

    async def _add_transfer(
        self,
        main: grpc.aio.Server,
        services: Services,
        coordinator: Coordinator,
        authenticator: Authenticator,
        main_port: int,
    ) -> str:
        """Serve transfers: in this process on the main port, and with several workers on a port that they share."""
        node = IngestNode(LOCAL_NODE, services.spool, self._figures.meter.folded)
        services.nodes.add(LocalNode(node, self._executor))
        transfer = self._transfer(services, coordinator, authenticator)
        main.add_generic_rpc_handlers((transfer.handler(),))
        if self._config.workers == 1:
            return ""
        workers = self._workers = WorkerPool(self._config, services.nodes, coordinator, self._executor)
        self._closing.push_async_callback(workers.stop)
        port = await workers.start(self._config.port_after(main_port, 2, self._config.transfer_port))
        return f"{self._config.advertised_host}:{port}"

    def _serve_sign_in(
        self, port: SignInPort, control: Callable[..., ControlService], transfer: TransferService
    ) -> str:
        """Add the operators' services to the port of those who sign in; returns its address."""
        add_ControlServiceServicer_to_server(control(authenticator=port.authenticator), port.server)
        port.server.add_generic_rpc_handlers((transfer.handler(),))
        self._listeners.append(port.server)
        self._fronts.append(port.front)
        self._closing.push_async_callback(port.front.close)
        address = f"{self._config.advertised_host}:{port.port}"
        log.info("operators sign in through %s on %s", self._config.oidc.issuer, address)
        return address

    def _transfer(self, services: Services, coordinator: Coordinator, authenticator: Authenticator) -> TransferService:
        """The transfers of one port of this process."""
        processes = 1 if self._config.workers == 1 else 1 + self._config.workers
        return TransferService(
            node=LOCAL_NODE,
            coordinator=coordinator,
            authenticator=authenticator,
            blobs=services.blobs,
            spool=services.spool,
            executor=self._executor,
            room=DownloadRoom.of(self._config.limits, processes),
            meter=self._figures.meter,
        )


async def _verify_ledgers(reader: Reader) -> None:
    """Log what is wrong with the privacy ledgers: their runs start no round, everything else continues."""
    for population, flaw in (await reader.run(ledger.flaws)).items():
        log.error("%s; no round of its runs starts", flaw, extra={"population": population})
