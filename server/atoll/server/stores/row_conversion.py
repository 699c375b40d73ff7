"""Converts between frozen dataclasses and rows; fields and columns have the same names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from sqlalchemy import Connection, Select, Table, select

from atoll.server.stores.errors import StoreDamagedError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Checksummed(Protocol):
    """A dataclass whose row has a checksum over its values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def title(self) -> str:
        """Name of the record in errors."""
        ...

    @property
    def checksum(self) -> str:
        """A checksum over its current values."""
        ...


Values = Mapping[str, Any]
NO_VALUES: Values = MappingProxyType({})
R = TypeVar("R", bound="DataclassInstance")
C = TypeVar("C", bound=Checksummed)


def to_row(record: DataclassInstance) -> dict[str, Any]:
    """Column values of a record."""
    return {name: getattr(record, name) for name in _names(type(record))}


def to_checksummed_row(record: Checksummed) -> dict[str, Any]:
    """Column values of a record, and its checksum."""
    return {**to_row(record), "checksum": record.checksum}


@cache
def _names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def select_all(kind: type[R], table: Table) -> Select[Any]:
    """A query for the columns of a record type, in the order of its fields; cached."""
    return select(*(table.c[field.name] for field in fields(kind)))


def fetch_one(connection: Connection, kind: type[R], query: Select[Any], values: Values = NO_VALUES) -> R | None:
    """The only row of the query, or None; ``values`` are its parameters."""
    row = connection.execute(query, values).one_or_none()
    return None if row is None else kind(*row)


def checksummed(kind: type[R], table: Table) -> Select[Any]:
    """Like ``select_all``, with the row's checksum, for ``fetch_sound``."""
    return select_all(kind, table).add_columns(table.c.checksum)


def fetch_sound(connection: Connection, kind: type[C], query: Select[Any], values: Values = NO_VALUES) -> tuple[C, ...]:
    """All rows of the query, each compared with the checksum that it was written with.

    Raises:
        StoreDamagedError: names a row that was altered on disk.
    """
    found = []
    for *columns, written in connection.execute(query, values):
        record = kind(*columns)
        if record.checksum != written:
            raise StoreDamagedError(f"the record of {record.title} was changed on disk")
        found.append(record)
    return tuple(found)


def fetch_all(connection: Connection, kind: type[R], query: Select[Any], values: Values = NO_VALUES) -> tuple[R, ...]:
    """All rows of the query."""
    return tuple(kind(*row) for row in connection.execute(query, values))
