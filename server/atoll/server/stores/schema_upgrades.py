"""A database's record of its upgrades: the oldest schema whose servers may use it, and who upgraded it.

It tells a server that does not know the revision of a database whether the server may still use it. Like Alembic's own
table, this one belongs to the migrations and not to ``schema``: a copy of a database gets it from the program that
makes the copy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Double, MetaData, String, Table, delete, insert, inspect, select, update

import atoll.server
from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.stores.migrations.compatibility import PROJECTS_FROM, usable_from
from atoll.server.stores.schema import projects

table = Table(
    "schema_upgrades",
    MetaData(),
    Column("revision", String(32), primary_key=True),
    Column("usable_from", String(32), nullable=False),
    Column("at", Double, nullable=False),
    Column("by", String(64), nullable=False),
)


@dataclass(frozen=True)
class SchemaUpgrade:
    """The upgrade that brought a database to a revision.

    Attributes:
        revision: the schema's revision.
        usable_from: the oldest revision whose servers may use the database.
        at: epoch second of the upgrade; 0 if not recorded.
        by: the version of atoll that upgraded it; empty if not recorded.
    """

    revision: str
    usable_from: str
    at: float = 0.0
    by: str = ""

    def __str__(self) -> str:
        """The upgrade in words, for messages."""
        if not self.by:
            return f"schema revision {self.revision}"
        day = time.strftime("%Y-%m-%d", time.gmtime(self.at))
        return f"schema revision {self.revision} (by atoll {self.by}, {day})"


def note(connection: Connection, revision: str) -> None:
    """Record that this program has brought the database to a revision, which it knows."""
    table.create(connection, checkfirst=True)
    connection.execute(delete(table).where(table.c.revision == revision))
    row = SchemaUpgrade(revision, usable_from(revision), time.time(), atoll.server.__version__)
    connection.execute(insert(table).values(revision=row.revision, usable_from=row.usable_from, at=row.at, by=row.by))
    others = select(projects.c.name).where(projects.c.name != DEFAULT_PROJECT).limit(1)
    if connection.execute(others).first() is not None:
        require(connection, PROJECTS_FROM)


def require(connection: Connection, revision: str) -> None:
    """Record that only servers from ``revision`` on may use the database from now on, because of its content."""
    connection.execute(update(table).where(table.c.usable_from < revision).values(usable_from=revision))


def find(connection: Connection, revision: str) -> SchemaUpgrade:
    """The record for the database's revision; without one, only servers that know the revision may use it."""
    if inspect(connection).has_table(table.name):
        columns = (table.c.revision, table.c.usable_from, table.c.at, table.c.by)
        row = connection.execute(select(*columns).where(table.c.revision == revision)).one_or_none()
        if row is not None:
            return SchemaUpgrade(*row)
    return SchemaUpgrade(revision, revision)
