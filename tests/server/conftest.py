"""Stores with both kinds of database, for the server's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.server.stores import Store
from tests.compiled_statements import statements_compiled_once, tables_compiled_once
from tests.object_storage import object_store, s3
from tests.postgresql import database_server, postgresql_url
from tests.server.stores.samples import OpenStore

__all__ = [
    "database_server",
    "object_store",
    "postgresql_url",
    "s3",
    "statements_compiled_once",
    "tables_compiled_once",
]


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
