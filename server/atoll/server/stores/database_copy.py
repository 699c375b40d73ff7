"""Copies a whole database into an empty one of either kind, for backups and ``atoll server migrate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Table, func, select
from sqlalchemy.types import TypeDecorator, TypeEngine

from atoll.server.stores import schema
from atoll.server.stores.errors import StoreDamagedError

_ROWS = 1_000  # rows per statement; the largest hold a run's layout or snapshot


def copy_rows(source: Connection, target: Connection) -> dict[str, int]:
    """Copy the rows of every table, and check the number of rows in the target.

    Values are copied as they are stored: JSON text keeps its bytes, so checksums stay true.

    Args:
        source: connection to the source at the newest revision of the schema, in one snapshot.
        target: connection to the target with the empty tables of that revision, in a transaction that the caller
            commits.

    Returns:
        Number of rows by table.

    Raises:
        StoreDamagedError: if the target ends up with a different number of rows.
        SQLAlchemyError: if a database refuses.
    """
    return {table.name: _copy(table, source, target) for table in _plain_tables()}


def _copy(table: Table, source: Connection, target: Connection) -> int:
    for rows in _batches(table, source):
        target.execute(table.insert(), rows)
    expected, found = (one.execute(select(func.count()).select_from(table)).scalar_one() for one in (source, target))
    if found != expected:
        raise StoreDamagedError(f"{found} of {expected} rows of table {table.name} arrived", where=target.engine.url)
    return int(found)


def _batches(table: Table, source: Connection) -> Iterator[list[Mapping[str, Any]]]:
    query = select(table).execution_options(stream_results=True, yield_per=_ROWS)
    for rows in source.execute(query).mappings().partitions():
        yield [dict(row) for row in rows]


def _plain_tables() -> Iterator[Table]:
    """The schema's tables in the order of their references; columns pass values on as they are stored."""
    plain = MetaData()
    for table in schema.metadata.sorted_tables:
        yield Table(table.name, plain, *(Column(column.name, _plain(column.type)) for column in table.columns))


def _plain(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    return kind.impl_instance if isinstance(kind, TypeDecorator) else kind
