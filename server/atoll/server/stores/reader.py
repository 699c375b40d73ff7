"""Runs database reads on a few threads, each in one snapshot; reads never wait for the writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from atoll.server.stores.dialects import translate
from atoll.server.stores.errors import StoreBusyError, StoreClosedError

T = TypeVar("T")
P = ParamSpec("P")
THREADS = 2
QUEUE_LIMIT = 4096  # maximum number of waiting reads


class Reader:
    """Runs functions on read-only connections. Thread-safe."""

    def __init__(self, engine: Engine, *, threads: int = THREADS, queue_limit: int = QUEUE_LIMIT) -> None:
        self._engine = engine
        self._queue_limit = queue_limit
        self._places = threading.BoundedSemaphore(queue_limit)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="store-reader")
        self._closed = False

    async def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(connection, *args, **kwargs)`` in another thread, in one snapshot of the database.

        It sees every write that was acknowledged before the call.

        Raises:
            StoreBusyError: if too many reads wait.
            StoreClosedError: if the store is closed.
            StoreUnavailableError, StoreDamagedError: if the database fails.
            Exception: what ``work`` raises.
        """
        return await asyncio.wrap_future(self.submit(work, *args, **kwargs))

    def submit(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like ``run``, for callers in threads.

        Raises:
            StoreBusyError: if too many reads wait.
            StoreClosedError: if the store is closed.
        """
        if self._closed:
            raise StoreClosedError
        if not self._places.acquire(blocking=False):
            raise StoreBusyError(f"{self._queue_limit} reads are waiting for the database")
        future = self._pool.submit(self.read, lambda connection: work(connection, *args, **kwargs))
        future.add_done_callback(lambda _: self._places.release())
        return future

    def close(self) -> None:
        """Refuse new work, finish waiting reads, and close the connections."""
        self._closed = True
        self._pool.shutdown(wait=True)
        self._engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in the caller's thread. Raises what ``run`` raises."""
        try:
            with self._engine.connect() as connection, connection.begin():
                return work(connection)
        except SQLAlchemyError as error:
            raise translate(error, self._engine.url) from error
