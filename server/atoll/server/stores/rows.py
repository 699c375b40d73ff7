"""Frozen dataclasses to rows and back: fields carry the names of columns."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Select, Table, select

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


def to_row(record: DataclassInstance) -> dict[str, Any]:
    """Column values of a record."""
    return {name: getattr(record, name) for name in _names(type(record))}


@cache
def _names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def select_all(kind: type[R], table: Table) -> Select[Any]:
    """A query for the columns that make a ``kind``, made once."""
    return select(*(table.c[field.name] for field in fields(kind)))


def fetch_one(connection: Connection, kind: type[R], query: Select[Any]) -> R | None:
    """The only row of the query, None if there is none."""
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else kind(**row)


def fetch_all(connection: Connection, kind: type[R], query: Select[Any]) -> tuple[R, ...]:
    """All rows of the query."""
    return tuple(kind(**row) for row in connection.execute(query).mappings())
