"""The daemon: opens the state, listens, resumes the runs, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from atoll.processes.heap import keep_chunks
from atoll.server.access.audit_log import AuditLog, OperatorDownloads
from atoll.server.access.certificates import CertificateBook
from atoll.server.backup import last_restoration
from atoll.server.config.config import ServerConfig
from atoll.server.identity import Authority
from atoll.server.ingest.bucket_uploads import uploads_beside
from atoll.server.ingest.node_pool import NodePool
from atoll.server.ingest.spool import Spool
from atoll.server.privacy import ledger
from atoll.server.process.clock import SteadyClock
from atoll.server.process.draining import drain, progress_logged
from atoll.server.process.failover import Failover
from atoll.server.process.logs import ContextFilter, kept_in
from atoll.server.process.metrics_pages import MetricsPages
from atoll.server.process.ports import Addresses, Ports
from atoll.server.process.warming import Warming
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.evaluators import load_evaluators
from atoll.server.runs.services import Services
from atoll.server.runs.sessions import Sessions
from atoll.server.stores import Reader, Store, database_place
from atoll.server.stores.store import SPOOL_FOLDER
from atoll.server.telemetry.node import NodeFigures
from atoll.server.telemetry.recent_log import RecentLog
from atoll.server.telemetry.rounds import RoundFigures
from atoll.server.telemetry.run_telemetry import RunTelemetry, tracer_of
from atoll.text.figures import counted
from atoll.wire.loopback import is_loopback

log = logging.getLogger(__name__)

THREADS = 8


class Daemon:
    """One server process and its workers. Call ``start`` once, then ``stop`` once.

    Args:
        config: its settings.
        returns: whether this server was active before and had to stop; ``start`` then waits for a database or bucket
            that does not answer.
    """

    def __init__(self, config: ServerConfig, *, returns: bool = False) -> None:
        self._config = config
        self._clock = time.time
        self._steady = SteadyClock()
        self._sessions = Sessions(self._steady, config.check_in)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="atoll")
        self._closing = contextlib.AsyncExitStack()
        self._coordinator: Coordinator | None = None
        self._figures = NodeFigures()
        self._failover = Failover(config, returns=returns)
        self._recent_log = RecentLog()
        self._recent_log.addFilter(ContextFilter())
        self._ports = Ports(
            config,
            sessions=self._sessions,
            executor=self._executor,
            figures=self._figures,
            recent_log=self._recent_log,
            closing=self._closing,
            clock=self._clock,
        )
        self._serving = False

    async def start(self) -> Addresses:
        """Open the state, listen, and resume every run.

        Raises:
            StandbyEndedError: if ``stop_waiting`` was called while another server was active.
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
        """Set when another server has, or may have, taken over: stop this one. ``why_over`` has the reason."""
        return self._failover.over

    @property
    def why_over(self) -> str:
        """A sentence about the end of this server's turn."""
        return self._failover.reason

    def stop_waiting(self) -> None:
        """End a ``start`` that waits for another server to fail; has no effect after the wait."""
        self._failover.standby.end()

    async def stop(self) -> None:
        """Send participants away, let current work end for up to ``drain_s``, and close the state."""
        left_s = await self._drain() if self._serving else 0.0
        async with progress_logged(self._open_calls, left_s):
            await self._ports.stop(left_s)
        await self._failover.stop()
        await self._closing.aclose()
        self._executor.shutdown(wait=True)
        self._failover.close_pages()

    def _open_calls(self) -> str:
        connected = self._sessions.streams
        return f"{counted(connected, 'participant')} connected" if connected else "open calls"

    async def _drain(self) -> float:
        """Send participants away, and let current work end; returns the remaining seconds of ``drain_s``."""
        coordinator = self._coordinator
        if coordinator is None:
            raise TypeError(coordinator)
        self._serving = False
        for health in self._ports.health:
            await health.enter_graceful_shutdown()
        coordinator.leave()
        self._sessions.leave()
        left_s = 0.0
        if not self.over.is_set():  # else another server has taken over; this one acknowledges nothing more
            left_s = await drain(self._figures.meter, self._config.drain_s, coordinator.settled)
        if self._ports.workers is not None:
            await self._ports.workers.stop()
        if self._ports.gateways is not None:
            self._ports.gateways.leave()
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
            standby=self._failover.begin(),
        )
        store = await loop.run_in_executor(self._executor, opening)
        self._closing.callback(store.close)
        rounds, tracer = RoundFigures(), tracer_of()
        if tracer is not None:
            self._closing.push_async_callback(loop.run_in_executor, self._executor, tracer.close)
        await self._failover.take_turn(store, rounds)
        await _verify_ledgers(store.reader)
        authority = Authority.open(config.data / "ca", now=self._clock())
        restored_at = last_restoration(config.data)
        book = CertificateBook(authority, store.writer, store.reader, self._clock, restored_at)
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
            services,
            book,
            config.storage,
            insecure=config.insecure,
            restored_at=restored_at,
            downloads=downloads,
            renewal_grace_s=config.renewal_grace_s,
        )
        addresses = await self._ports.open(services, coordinator, book, authority, audit_log, downloads)
        self._closing.push_async_callback(coordinator.stop)
        await coordinator.start()
        log.info("active runs: %d; opening the ports", len(coordinator.in_work()))
        if shortage := room.shortage():
            log.warning("no room for uploads and new rounds: %s; they wait until there is some", shortage)
        for doubt in config.doubts:
            log.warning("%s", doubt)
        gateways = self._ports.gateways
        if gateways is not None:
            gateways.remember_names = partial(self._failover.remember_names, store)
            gateways.know_names(await gateways.remember_names(config.certificate_names))
        await self._ports.start()
        self._serving = True
        ports = [int(address.rpartition(":")[2]) for address in (addresses.main, addresses.enrolment)]
        await self._failover.announce(store, *ports)
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
            workers=self._ports.workers,
            standbys=lambda: self._failover.standbys,
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


async def _verify_ledgers(reader: Reader) -> None:
    """Log the flaws of damaged privacy ledgers: their runs start no round, everything else continues."""
    for population, flaw in (await reader.run(ledger.flaws)).items():
        log.error("%s; no round of its runs starts", flaw, extra={"population": population})
