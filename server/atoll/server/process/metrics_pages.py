"""The pages for metrics and health, made from the counts of all processes and the current state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Executor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection

from atoll.server.config.config import ServerConfig
from atoll.server.errors import ServerError, UnavailableError
from atoll.server.identity import Authority
from atoll.server.process.worker_pool import WorkerPool
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.services import Services
from atoll.server.stores import participants, schema_version
from atoll.server.stores.blob_place import BLOBS_FOLDER
from atoll.server.stores.database_place import sqlite_bytes
from atoll.server.stores.store import SPOOL_FOLDER
from atoll.server.telemetry import health
from atoll.server.telemetry.endpoint import Endpoint, Page
from atoll.server.telemetry.gauges import BROKEN, Gauges, families
from atoll.server.telemetry.node import NodeFigures, of_nodes, plain
from atoll.server.telemetry.recent import Recent
from atoll.server.telemetry.rounds import RoundFigures

T = TypeVar("T")

ANSWER_S = 10.0
"""Maximum seconds that a page waits for the event loop, the database and the workers."""
ALIVE_S = 5.0
"""Seconds after which an event loop that does not answer counts as stuck."""
METRICS_S = 1.0
"""Minimum seconds between two collections of metrics, however often they are requested."""
SIZES_S = 15.0
"""Minimum seconds between two measurements of sizes on disk."""
MAIN = "main"
ACTIVE = "/active"
"""The page that answers 200 only at the active server, for load balancers of operators."""
UNKNOWN = "unknown"


@dataclass(eq=False)
class MetricsPages:
    """Pages over a running server.

    Attributes:
        config: the server's addresses and directory.
        services: stores, sessions, threads.
        coordinator: the runs.
        authority: the certificate authority, whose certificates' expiry is a metric; None without TLS.
        node: this process's metrics.
        rounds: metrics of rounds.
        executor: threads that measure the disk.
        workers: the ingest workers; None if there are none.
        standbys: number of other standbys.
        serving: whether the server is serving.
    """

    config: ServerConfig
    services: Services
    coordinator: Coordinator
    authority: Authority | None
    node: NodeFigures
    rounds: RoundFigures
    executor: Executor
    workers: WorkerPool | None
    standbys: Callable[[], int]
    serving: Callable[[], bool]
    _asked: asyncio.Future[str] | None = None
    _sizes: tuple[float, dict[str, int]] = field(default=(float("-inf"), {}))

    def open(self, host: str, port: int) -> Endpoint:
        """Serve the pages; the running event loop makes them.

        Raises:
            SetupError: if the port cannot be opened.
        """
        loop = asyncio.get_running_loop()
        collected, readiness = Recent(self.collect, METRICS_S), health.Readiness(self.checks())

        def in_loop(work: Callable[[], Coroutine[Any, Any, T]], within_s: float) -> T:
            future = asyncio.run_coroutine_threadsafe(work(), loop)
            try:
                return future.result(within_s)
            except TimeoutError:
                future.cancel()
                raise
            except CancelledError:  # the loop ended while it made the page
                raise UnavailableError("server.stopping", "the server is stopping", "try again") from None

        def healthz() -> Page:
            try:
                in_loop(_nothing, ALIVE_S)
            except TimeoutError:
                return Page(b"the event loop does not answer\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
            return Page(b"alive\n")

        pages: dict[str, Callable[[], Page]] = {
            "/metrics": lambda: rendered(in_loop(collected, ANSWER_S)),
            "/healthz": healthz,
            "/readyz": lambda: health.page_of(in_loop(readiness.problems, ANSWER_S)),
            ACTIVE: self._is_active,
        }
        return Endpoint(host, port, pages)

    def _is_active(self) -> Page:
        if self.serving():
            return Page(b"active\n")
        return Page(b"starting or stopping\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def collect(self) -> list[Metric]:
        """Every metric of every process."""
        gauges = await self.gauges()
        answers = await self.workers.expositions() if self.workers is not None else {}
        nodes = [(MAIN, self.node.registry.collect())]
        nodes += [(name, text_string_to_metric_families(text.decode())) for name, text in sorted(answers.items())]
        return [*families(gauges), *plain(self.rounds.registry.collect()), *of_nodes(nodes)]

    def checks(self) -> health.Checks:
        """The inputs of the readiness check."""
        return health.Checks(
            serving=self.serving,
            write=self._write,
            shortage=self.services.room.shortage,
            workers=lambda: (0, 0) if self.workers is None else (self.workers.running, self.config.workers),
            blobs=self._blob_problem,
        )

    async def gauges(self) -> Gauges:
        """The current values of the gauges."""
        loop = asyncio.get_running_loop()
        free_bytes, disk_bytes = await loop.run_in_executor(self.executor, _disk, self.config.data)
        drivers = [active.driver for active in self.coordinator.in_work()]
        states = [driver.state for driver in drivers]
        live = [(state.policy, state.round) for state in states if state.round is not None and not state.status.ended]
        now = self.services.clock()
        return Gauges(
            connected=await self._connected(),
            runs=Counter(BROKEN if driver.broken is not None else driver.state.status.value for driver in drivers),
            members=Counter(
                member.status.value for policy, item in live if not policy.secret_draw for member in item.roster
            ),
            queues=self._queues(),
            stored_bytes=await self._stored(),
            certificate_ends=await loop.run_in_executor(self.executor, self._certificate_ends),
            workers=self.workers.running if self.workers is not None else 0,
            worker_restarts=self.workers.restarts if self.workers is not None else 0,
            disk_free_bytes=free_bytes,
            disk_bytes=disk_bytes,
            disk_reserve_bytes=self.services.room.reserve_bytes,
            standbys=self.standbys(),
            oldest_round_s=max((now - item.created_at for _, item in live if not item.ended_at), default=0.0),
        )

    async def _connected(self) -> dict[str, int]:
        names = [session.participant for session in self.services.sessions.all()]
        try:
            return await self.services.reader.run(lambda connection: participants.count_kinds(connection, names))
        except ServerError:  # a failing database must not hide the other figures
            return {UNKNOWN: len(names)}

    def _queues(self) -> dict[str, int]:
        return {
            "events": sum(active.driver.waiting for active in self.coordinator.in_work()),
            "writes": self.services.writer.waiting,
            "instructions": sum(len(session.outbox) for session in self.services.sessions.all()),
        }

    async def _stored(self) -> dict[str, int]:
        at, found = self._sizes
        if time.monotonic() - at >= SIZES_S:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self.executor, _sizes_in, self.config.data)
            self._sizes = (time.monotonic(), found)
        return found

    def _certificate_ends(self) -> dict[str, float]:
        if self.authority is None:
            return {}
        ends = {"authority": self.authority.not_after}
        with contextlib.suppress(ServerError):  # the listeners log what is wrong with it
            pair = self.authority.server_key_pair(self.config.certificate_names, now=time.time())
            ends["server"] = pair.not_after
        return ends

    async def _blob_problem(self) -> str:
        """Ask the blob store for problems; while one such call is pending, no further thread waits."""
        if self._asked is None or self._asked.done():
            loop = asyncio.get_running_loop()
            self._asked = loop.run_in_executor(self.executor, self.services.blobs.problem)
        return await asyncio.shield(self._asked)

    async def _write(self) -> None:
        def work(connection: Connection) -> None:
            schema_version.touch(connection)

        await self.services.writer.run(work)


def rendered(metrics: Iterable[Metric]) -> Page:
    """Metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collected(list(metrics)))
    return Page(generate_latest(registry), CONTENT_TYPE_LATEST)


@dataclass(frozen=True, eq=False)
class _Collected:
    metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


async def _nothing() -> None:
    """Returns as soon as the event loop runs it."""


def _disk(folder: Path) -> tuple[int, int]:
    """Free and total bytes of the path's file system; zeros if they cannot be read."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return 0, 0
    return found.free, found.total


def _sizes_in(data: Path) -> dict[str, int]:
    """Bytes of models, uploads and database in the data directory; a database elsewhere is left out."""
    sizes = {"models": _size_below(data / BLOBS_FOLDER), "uploads": _size_below(data / SPOOL_FOLDER)}
    database = sqlite_bytes(data)
    return sizes | {"database": sum(database)} if database else sizes


def _size_below(folder: Path) -> int:
    return sum(_size_of(Path(base) / name) for base, _, names in os.walk(folder) for name in names)


def _size_of(path: Path) -> int:
    """Bytes of a file; 0 if it has been removed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
