"""One live server for the fuzzing tests: in this process, with a run whose round is open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from atoll.server.config.limits import Limits
from atoll.server.ingest.node import IngestNode
from atoll.server.process.listeners import Port, make_server
from atoll.server.rpc.coordinator_service import CoordinatorService
from atoll.server.rpc.worker_service import WorkerService
from atoll.wire.v1.ingest_pb2_grpc import add_CoordinatorServiceServicer_to_server, add_WorkerServiceServicer_to_server
from tests.patience import WAIT_S
from tests.server.rpc.world import Participant, World, job

T = TypeVar("T")
LIMITS = Limits(check_ins_per_minute=1_000_000, calls_per_minute=1_000_000, wrong_tokens_per_hour=1_000_000)


class Live:
    """A server on an event loop of its own thread; ``call`` runs a coroutine there."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.errors: list[str] = []
        self._stack = contextlib.AsyncExitStack()
        self.call(self._begin(folder))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _begin(self, folder: Path) -> None:
        self.world = await self._stack.enter_async_context(World(folder / "data", limits=LIMITS))
        self.operator = self.world.operator
        self.participant = await self.world.participant()
        self.outsider = await self.world.channel(address=self.world.addresses.enrolment)
        self.member: Participant = await self.world.participant()
        self.stream = await self._stack.enter_async_context(self.member.check_in())
        self.run = await self.world.submit(job(window_s=3600.0))
        self.task = await self.stream.next("participate")
        self.inside = await self._sockets(folder / "inside.sock")

    async def _sockets(self, path: Path) -> str:
        """The calls between the processes of a server, on one socket."""
        daemon = self.world.daemon
        assert daemon._coordinator is not None
        self._private = make_server(Port.INSIDE)
        node = IngestNode("fuzzed", daemon._coordinator._services.spool)
        add_CoordinatorServiceServicer_to_server(CoordinatorService(daemon._coordinator), self._private)
        add_WorkerServiceServicer_to_server(
            WorkerService(node, daemon._executor, bytes, lambda *_: None), self._private
        )
        self._private.add_insecure_port(f"unix:{path}")
        await self._private.start()
        return f"unix:{path}"

    async def _end(self) -> None:
        await self._private.stop(None)
        await self._stack.aclose()

    def close(self) -> None:
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    made = Live(tmp_path_factory.mktemp("live"))

    class Errors(logging.Handler):
        """Keeps what is logged as the server's own bug."""

        def emit(self, record: logging.LogRecord) -> None:
            if "unexpected error" in record.getMessage():
                made.errors.append(self.format(record))

    handler = Errors()
    logging.getLogger("atoll.server").addHandler(handler)
    yield made
    logging.getLogger("atoll.server").removeHandler(handler)
    made.close()
