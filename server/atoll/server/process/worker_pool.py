"""Ingest workers: processes that share a port to receive updates, each with its own partial sum.

A worker that dies is restarted. Its partial sums are folded again from the spool, so no update is lost or counted
twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from atoll.processes.cancellation import keep_cancellation
from atoll.server.config.config import ServerConfig
from atoll.server.errors import SetupError
from atoll.server.ingest.coordinator_api import CoordinatorApi
from atoll.server.ingest.file_node import PARTIAL, FileNode
from atoll.server.ingest.node_pool import NodePool
from atoll.server.process.listeners import Port, make_server
from atoll.server.process.logs import logging_settings
from atoll.server.process.sockets import SocketFolder
from atoll.server.rpc.coordinator_service import CoordinatorService
from atoll.server.rpc.worker_service import WorkerCalls
from atoll.server.stores.store import PARTIALS_FOLDER
from atoll.wire.v1.ingest_pb2_grpc import add_CoordinatorServiceServicer_to_server

log = logging.getLogger(__name__)

READY_S = 60.0
# A worker's socket does not exist until the worker has started, so try again soon.
_CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200))
_RESTART_S = 1.0
CHECK_S = 2.0
"""Seconds between two health checks of a worker."""
ANSWER_S = 15.0
"""Seconds without an answer after which a worker is killed; other workers take over its work."""


class WorkerPool:
    """Starts ``config.workers`` workers, keeps them running, and stops them; ``restarts`` counts restarts.

    ``standing_by``: see ``WorkerOrder``.
    """

    def __init__(
        self,
        config: ServerConfig,
        nodes: NodePool,
        coordinator: CoordinatorApi,
        executor: Executor,
        *,
        standing_by: bool = False,
    ) -> None:
        self._standing_by = standing_by
        self._patience_s = config.drain_s + 5.0
        self._config = config
        self._nodes = nodes
        self._coordinator = coordinator
        self._executor = executor
        self._sockets = SocketFolder(config.data)
        self._partials = config.data / PARTIALS_FOLDER
        self._server = make_server(Port.INSIDE)
        self._reserved: socket.socket | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self._running: dict[str, WorkerCalls] = {}
        self.restarts = 0

    @property
    def running(self) -> int:
        """Number of serving workers."""
        return len(self._running)

    async def expositions(self) -> dict[str, bytes]:
        """The metrics, in Prometheus' text format, of each worker that answers in time."""
        running = dict(self._running)
        answers = await asyncio.gather(*(calls.exposition() for calls in running.values()), return_exceptions=True)
        return {name: answer for name, answer in zip(running, answers, strict=True) if isinstance(answer, bytes)}

    async def start(self, port: int) -> int:
        """Start the workers on a port (0: any free one) and wait until they serve; returns the port.

        Raises:
            SetupError: if the port cannot be opened, or a worker does not start.
        """
        self._reserved = _reserve(self._config.host, port)
        bound: int = self._reserved.getsockname()[1]
        self._partials.mkdir(mode=0o700, exist_ok=True)
        add_CoordinatorServiceServicer_to_server(CoordinatorService(self._coordinator), self._server)
        self._server.add_insecure_port(self._sockets.address("coordinator"))
        await self._server.start()
        ready = [asyncio.get_running_loop().create_future() for _ in range(self._config.workers)]
        self._keepers = [
            asyncio.create_task(self._keep(f"worker-{number}", bound, future)) for number, future in enumerate(ready)
        ]
        await asyncio.gather(*ready)
        return bound

    async def stop(self, within_s: float = math.inf) -> None:
        """Stop the workers, and remove their sockets and files; calls that are open after ``within_s`` are cut off."""
        self._patience_s = min(self._patience_s, within_s)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._server.stop(None)
        if self._reserved is not None:
            self._reserved.close()
        self._sockets.remove()
        shutil.rmtree(self._partials, ignore_errors=True)

    async def _keep(self, name: str, port: int, ready: asyncio.Future[None]) -> None:
        """Run a worker and restart it when it ends; ``ready`` gets the outcome of the first start."""
        while True:
            try:
                await self._run(name, port, ready)
            except (SetupError, OSError) as error:
                if not ready.done():
                    ready.set_exception(error if isinstance(error, SetupError) else _not_started(name, error))
                    return
                log.warning("%s does not start, trying again: %s", name, error)
            await asyncio.sleep(_RESTART_S)

    async def _run(self, name: str, port: int, ready: asyncio.Future[None]) -> None:
        """Run one process to its end. First removes the previous process's unfinished files, which are unusable."""
        for left in self._partials.glob(f"{name}-*{PARTIAL}"):
            left.unlink(missing_ok=True)
        process = await self._spawn(name, port)
        try:
            async with grpc.aio.insecure_channel(self._sockets.address(name), options=_CHANNEL_OPTIONS) as channel:
                await _until_ready(name, channel, process)
                calls = self._running[name] = WorkerCalls(name, channel)
                self._nodes.add(FileNode(name, calls, self._partials, self._executor))
                if not ready.done():
                    ready.set_result(None)
                log.info("ingest %s started, process %s", name, process.pid)
                reason = await _end_of(process, channel)
                self.restarts += 1
                log.error("%s %s; starting it again", name, reason)
        finally:
            self._running.pop(name, None)
            self._nodes.remove(name)
            await self._end(process)

    async def _spawn(self, name: str, port: int) -> asyncio.subprocess.Process:
        from atoll.server.process.worker_process import WorkerOrder  # noqa: PLC0415 - that module is the other process's main

        level, as_json = logging_settings()
        order = WorkerOrder(
            name=name,
            config=self._config,
            port=port,
            coordinator=self._sockets.address("coordinator"),
            socket=self._sockets.address(name),
            log_level=level,
            json_log=as_json,
            standing_by=self._standing_by,
        )
        # the pipe to its standard input closes however this process ends, and that ends the worker
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "atoll.server.process.worker_process",
            order.model_dump_json(),
            stdin=asyncio.subprocess.PIPE,
        )

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self._patience_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _end_of(process: asyncio.subprocess.Process, channel: grpc.aio.Channel) -> str:
    """Wait until the process ends, or is killed because it no longer answers; returns what happened."""
    health: Any = HealthStub(channel)  # the generated stubs lack the methods
    ended = asyncio.create_task(process.wait())
    while not (await asyncio.wait({ended}, timeout=CHECK_S))[0]:
        try:
            await health.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            keep_cancellation()
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                process.kill()
                await ended
                return f"did not answer for {ANSWER_S:g} s and was killed"
    return f"ended with status {await ended}"


async def _until_ready(name: str, channel: grpc.aio.Channel, process: asyncio.subprocess.Process) -> None:
    """Wait until the worker answers a health check.

    Raises:
        SetupError: if it ends or does not answer in time.
    """
    connected = asyncio.create_task(channel.channel_ready())
    ended = asyncio.create_task(process.wait())
    waiting: Sequence[asyncio.Task[object]] = (connected, ended)
    try:
        await asyncio.wait(waiting, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise _not_started(name, f"it ended with status {process.returncode}")
        if not connected.done():
            raise _not_started(name, f"it does not answer after {READY_S:.0f} s")
    finally:
        for task in waiting:
            task.cancel()


def _not_started(name: str, why: object) -> SetupError:
    return SetupError("worker.start", f"{name}, an ingest worker, did not start: {why}", "see the log above")


def _reserve(host: str, port: int) -> socket.socket:
    """A bound socket that never listens: it reserves the port for the workers, which bind it with SO_REUSEPORT."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        reserved.bind((host, port))
    except OSError as error:
        reserved.close()
        raise SetupError(
            "server.port", f"cannot listen on {host}:{port}: {error.strerror}", "choose another with --transfer-port"
        ) from error
    return reserved
