"""The daemon's ports, and the services on each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc.aio
from grpc_health.v1._async import HealthServicer

from atoll.server.access.audit_log import AuditLog, OperatorDownloads
from atoll.server.access.certificates import CertificateBook
from atoll.server.access.issuing import CertificateIssuer
from atoll.server.access.join_tokens import JoinTokens
from atoll.server.access.operator_file import OperatorFile
from atoll.server.access.operators import Operators
from atoll.server.access.project_book import ProjectBook
from atoll.server.access.server_certificates import ServerCertificates
from atoll.server.config.config import ServerConfig
from atoll.server.gateway.host.bindings import Bindings
from atoll.server.gateway.host.bound_coordinator import GatewayCoordinatorService
from atoll.server.gateway.host.receipts import Receipts
from atoll.server.gateway.host.service import SERVICE as GATEWAY_SERVICE
from atoll.server.gateway.host.service import GatewayService, Issuers
from atoll.server.identity import OPERATOR_FILE, Authority
from atoll.server.ingest.local_node import LocalNode
from atoll.server.ingest.node import IngestNode
from atoll.server.process.front import BEHIND, Front
from atoll.server.process.listeners import Port, add_health_and_reflection, bind, make_server, server_credentials
from atoll.server.process.sign_in_port import SignInPort, open_sign_in_port
from atoll.server.process.worker_pool import WorkerPool
from atoll.server.rpc.admission import Admission
from atoll.server.rpc.authentication import Authenticator
from atoll.server.rpc.control import ControlService
from atoll.server.rpc.download_room import DownloadRoom
from atoll.server.rpc.enrolment import EnrolmentService, Redeemer, RenewalService
from atoll.server.rpc.enrolment_rate import EnrolmentRate
from atoll.server.rpc.operator_handlers import Access, ServerFacts
from atoll.server.rpc.participation import ParticipationService
from atoll.server.rpc.scoping import Scopes
from atoll.server.rpc.supervision import Supervision
from atoll.server.rpc.transfer import SERVICE as TRANSFER_SERVICE
from atoll.server.rpc.transfer import TransferService
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.services import Services
from atoll.server.runs.sessions import Sessions
from atoll.server.stores import operators as stored_operators
from atoll.server.stores import project_roles
from atoll.server.stores.store import PARTIALS_FOLDER
from atoll.server.telemetry.node import NodeFigures
from atoll.server.telemetry.recent_log import RecentLog
from atoll.wire.v1.control_pb2_grpc import add_ControlServiceServicer_to_server
from atoll.wire.v1.enrolment_pb2_grpc import (
    add_EnrolmentServiceServicer_to_server,
    add_RenewalServiceServicer_to_server,
)
from atoll.wire.v1.gateway_pb2_grpc import add_GatewayServiceServicer_to_server
from atoll.wire.v1.ingest_pb2_grpc import add_CoordinatorServiceServicer_to_server

log = logging.getLogger(__name__)

LOCAL_NODE = "main"

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


class Ports:
    """The ports of one server process: main, enrolment, transfer, and the one for signing in.

    Args:
        config: the server's settings.
        sessions: the participants' sessions.
        executor: runs calls that block.
        figures: counts refusals and transferred bytes.
        recent_log: the newest lines of the log, for operators.
        closing: closes everything that is opened here.
        clock: epoch seconds of the wall clock.

    Attributes:
        health: the health service of each port.
        workers: the processes that serve the transfer port; None without one.
        gateways: the service of aggregators and standbys; None before ``open``.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        sessions: Sessions,
        executor: ThreadPoolExecutor,
        figures: NodeFigures,
        recent_log: RecentLog,
        closing: contextlib.AsyncExitStack,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._executor = executor
        self._figures = figures
        self._recent_log = recent_log
        self._closing = closing
        self._clock = clock
        self._started_at = clock()
        self._listeners: list[grpc.aio.Server] = []
        self._front = Front(config.limits.enrolment_connections, figures.meter.refused)
        self._fronts = [self._front]
        self.health: list[HealthServicer] = []
        self.workers: WorkerPool | None = None
        self.gateways: GatewayService | None = None

    async def start(self) -> None:
        """Listen on all ports that ``open`` has bound."""
        for listener in self._listeners:
            await listener.start()
        for front in self._fronts:
            await front.start()

    async def stop(self, left_s: float) -> None:
        """End all calls, after at most ``left_s`` seconds."""
        await asyncio.gather(*(listener.stop(left_s) for listener in self._listeners))

    async def open(
        self,
        services: Services,
        coordinator: Coordinator,
        book: CertificateBook,
        authority: Authority,
        audit_log: AuditLog,
        downloads: OperatorDownloads,
    ) -> Addresses:
        """Bind all ports, and add their services; ``start`` then begins to listen."""
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
            ping_s=config.ping_s,
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
            ping_s=config.ping_s,
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
        issuer = CertificateIssuer(
            book,
            authority,
            services.writer,
            services.reader,
            self._clock,
            lifetime_s=config.certificate_lifetime_s,
            most_per_lifetime=config.limits.certificates_per_lifetime,
            grace_s=config.renewal_grace_s,
        )
        redeemer = Redeemer(issuer, main_address, EnrolmentRate(config.limits))
        gateways = self.gateways = self._serve_gateways(main, services, coordinator, authenticator, authority, redeemer)
        control = partial(
            ControlService,
            coordinator=coordinator,
            access=Access(book, JoinTokens(authority, services.writer, self._clock), operators, projects),
            services=services,
            facts=ServerFacts(
                self._started_at,
                config.workers,
                config.data,
                enrol_address,
                names,
                gateways.addresses,
                gateways.server_names.keys(),
            ),
            recent_log=self._recent_log,
            downloads=downloads,
        )
        sign_in = ""
        if config.oidc.issuer is not None and not config.insecure:
            own = server_credentials(authority, names, mutual=False, clock=self._clock)  # gRPC needs one for each port
            port = await open_sign_in_port(config, config.oidc.issuer, coordinator, supervise, refused, own, main_port)
            sign_in = self._serve_sign_in(port, control, self._transfer(services, coordinator, port.authenticator))
        main.add_generic_rpc_handlers((participation.handler(),))
        add_RenewalServiceServicer_to_server(RenewalService(issuer, authenticator), main)
        add_ControlServiceServicer_to_server(control(authenticator=authenticator), main)
        add_EnrolmentServiceServicer_to_server(EnrolmentService(issuer, redeemer, front.origin), enrolment)
        self.health = [
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
        redeemer: Redeemer,
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
            issuers=Issuers(ServerCertificates(authority, services.reader, self._clock), redeemer),
            executor=self._executor,
        )
        service.ping_s = self._config.ping_s
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
        """Serve transfers: on the main port in this process, or with several workers on a shared port."""
        node = IngestNode(LOCAL_NODE, services.spool, self._figures.meter.folded)
        services.nodes.add(LocalNode(node, self._executor))
        transfer = self._transfer(services, coordinator, authenticator)
        main.add_generic_rpc_handlers((transfer.handler(),))
        if self._config.workers == 1:
            return ""
        workers = self.workers = WorkerPool(self._config, services.nodes, coordinator, self._executor)
        self._closing.push_async_callback(workers.stop)
        port = await workers.start(self._config.port_after(main_port, 2, self._config.transfer_port))
        return f"{self._config.advertised_host}:{port}"

    def _serve_sign_in(
        self, port: SignInPort, control: Callable[..., ControlService], transfer: TransferService
    ) -> str:
        """Add the operators' services to the sign-in port; returns its address."""
        add_ControlServiceServicer_to_server(control(authenticator=port.authenticator), port.server)
        port.server.add_generic_rpc_handlers((transfer.handler(),))
        self._listeners.append(port.server)
        self._fronts.append(port.front)
        self._closing.push_async_callback(port.front.close)
        address = f"{self._config.advertised_host}:{port.port}"
        log.info("operators sign in through %s on %s", self._config.oidc.issuer, address)
        return address

    def _transfer(self, services: Services, coordinator: Coordinator, authenticator: Authenticator) -> TransferService:
        """The transfer service of one port of this process."""
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
