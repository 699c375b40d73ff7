"""SQL that SQLAlchemy compiles once for all stores of a test process; it would compile it for each of thousands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from atoll.server.stores import dialects, schema


class CompiledStatements(dict[Any, Any]):
    """The compiled statements of one kind of database; SQLAlchemy's keys begin with the dialect of a single engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(key[1:], compiled)


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """Let the engines of one kind of database share their compiled statements."""
    kept: dict[str, CompiledStatements] = {}

    def create(*url: Any, **options: Any) -> Engine:
        engine = create_engine(*url, **options)
        engine.update_execution_options(compiled_cache=kept.setdefault(engine.dialect.name, CompiledStatements()))
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialects, "create_engine", create)
        yield


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
