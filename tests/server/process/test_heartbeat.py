"""The end of a server's turn at a database that others wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from atoll.server.process.heartbeat import Heartbeat
from atoll.server.stores import Store
from atoll.server.stores.server_turns import HOLDER
from atoll.server.stores.standby import STANDBY_NAME
from tests.patience import WAIT_S
from tests.postgresql import DatabaseServer

pytestmark = pytest.mark.slow


class Server:
    """A store with a heartbeat; counts commits that failed."""

    def __init__(self, store: Store, silence_s: float) -> None:
        self.store = store
        self.over = asyncio.Event()
        self.heartbeat = Heartbeat(store, silence_s, self.over)
        self.failed = 0
        self._loop = asyncio.get_running_loop()
        self._committed_any = asyncio.Event()
        store.writer.watch(self._committed)

    def _committed(self, functions: int, seconds: float, failed: bool) -> None:
        self.failed += failed
        self.heartbeat.note_commit(functions, seconds, failed)
        self._loop.call_soon_threadsafe(self._committed_any.set)

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not reached():
                await self._committed_any.wait()
                self._committed_any.clear()


@asynccontextmanager
async def server(tmp_path: Path, url: str, silence_s: float) -> AsyncIterator[Server]:
    made = Server(Store.open(tmp_path / "first", url=url), silence_s)
    try:
        yield made
    finally:
        await made.heartbeat.stop()
        await asyncio.to_thread(made.store.close)


def end_writer(url: str) -> None:
    """Let another server take over: it ends the connection and begins its own turn."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"SELECT pg_terminate_backend(pid) FROM (" + HOLDER.encode() + b") h")
        connection.execute("UPDATE server_turns SET number = number + 1")


async def test_it_is_over_when_another_server_has_taken_over(tmp_path: Path, postgresql_url: str) -> None:
    async with server(tmp_path, postgresql_url, 60.0) as one:
        await asyncio.to_thread(end_writer, postgresql_url)
        await asyncio.wait_for(one.over.wait(), WAIT_S)
        assert one.heartbeat.reason == "another server has taken over"


async def test_without_the_database_it_steps_down_if_others_stand_by(
    tmp_path: Path, postgresql_url: str, database_server: DatabaseServer
) -> None:
    async with server(tmp_path, postgresql_url, WAIT_S) as one:
        with psycopg.connect(postgresql_url, application_name=STANDBY_NAME + "second"):
            await one.until(lambda: one.heartbeat.standbys == 1)
            assert not one.over.is_set()
        database_server.stop()
        one.heartbeat._silence_s = 0.5  # only now: a busy database may take longer to answer
        try:
            await asyncio.wait_for(one.over.wait(), WAIT_S)
        finally:
            database_server.start()
        assert "without an answer of the database, and 1 other server stands by" in one.heartbeat.reason


async def test_a_statement_that_takes_long_does_not_end_its_turn_though_others_stand_by(
    tmp_path: Path, postgresql_url: str
) -> None:
    silence_s = 8.0  # a busy machine takes seconds to look

    def long_statement(connection: Connection) -> None:
        connection.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": silence_s + 2.0})

    async with server(tmp_path, postgresql_url, silence_s) as one:
        with psycopg.connect(postgresql_url, application_name=STANDBY_NAME + "second"):
            await one.until(lambda: one.heartbeat.standbys == 1)
            await one.store.writer.run(long_statement)
            assert not one.over.is_set(), one.heartbeat.reason


async def test_without_the_database_it_waits_if_it_is_the_only_one(
    tmp_path: Path, postgresql_url: str, database_server: DatabaseServer
) -> None:
    async with server(tmp_path, postgresql_url, 0.0) as one:
        database_server.stop()
        try:
            await one.until(lambda: one.failed >= 3)
        finally:
            database_server.start()
        await one.until(lambda: one.heartbeat.standbys == 0)
        assert not one.over.is_set()
