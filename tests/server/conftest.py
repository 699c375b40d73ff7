"""Stores with both kinds of database, for the server's tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from atoll.server.stores import Store, schema
from tests.object_storage import object_store, s3
from tests.postgresql import database_server, postgresql_url
from tests.server.stores.samples import OpenStore

__all__ = ["database_server", "object_store", "postgresql_url", "s3"]


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


@pytest.fixture(scope="session", autouse=True)
def tables_compiled_once() -> Iterator[None]:
    """Compile the statements that create the tables once for each kind of database, not for each of thousands."""
    create_all = schema.metadata.create_all
    kept: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = {}

    def create(connection: Connection, **options: Any) -> None:
        tables = tuple((name, len(table.columns)) for name, table in schema.metadata.tables.items())
        key = (connection.dialect.name, tables)
        if key in kept:
            for statement in kept[key]:
                connection.exec_driver_sql(statement)
            return
        said: list[str] = []

        def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
            said.append(statement)

        event.listen(connection, "before_cursor_execute", note)
        create_all(connection, **options)
        event.remove(connection, "before_cursor_execute", note)
        kept[key] = said

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema.metadata, "create_all", create)
        yield
