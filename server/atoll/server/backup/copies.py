"""Copies a SQLite or PostgreSQL database into a SQLite file, or from one kind to the other."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import URL, Engine
from sqlalchemy.exc import SQLAlchemyError

from atoll.server.disk.space import Room, fsync_path
from atoll.server.stores import StoreDamagedError, dialects, schema_upgrades, schema_version
from atoll.server.stores.database_copy import copy_rows


def copy_to_file(source: URL, target: Path) -> None:
    """Copy a consistent snapshot of a database into an empty SQLite file; writers continue meanwhile.

    Raises:
        StorageError: if a database or the disk refuses.
        StoreDamagedError: if the database, or its copy, is damaged.
    """
    if source.get_backend_name() == "sqlite":
        _copy_file(Path(source.database or ""), target)
    else:
        copy_from_server(source, target)


def copy_from_server(source: URL, target: Path) -> dict[str, int]:
    """Copy a consistent snapshot of a database server's database into an empty SQLite file; returns rows by table.

    Raises:
        StorageError: if the database or the disk refuses.
        StoreDamagedError: if not all rows arrived, or the copy is damaged.
    """
    reading = dialects.reader_engine(source, connections=1)
    writing = dialects.writer_engine(dialects.sqlite_url(target))
    try:
        schema_version.require_usable(reading)
        schema_version.require_known(reading)
        Room(target.parent, 0).require("the database", _size_of(reading))
        rows = copy_all(reading, writing)
    finally:
        reading.dispose()
        writing.dispose()
    with closing(sqlite3.connect(target)) as copied:
        _settle(copied, source=dialects.shown(source))
    fsync_path(target)
    return rows


def copy_all(source: Engine, target: Engine) -> dict[str, int]:
    """Create this version's tables in an empty database, and copy all rows in one transaction; returns rows by table.

    Raises:
        StorageError: if a database refuses.
        StoreDamagedError: if not all rows arrived.
    """
    schema_version.upgrade(target)
    try:
        with source.connect() as reading, reading.begin():
            try:
                with target.connect() as writing, writing.begin():
                    rows = copy_rows(reading, writing)
                    schema_upgrades.note(writing, schema_version.head_revision())  # the rows may lock older servers out
                    return rows
            except SQLAlchemyError as error:
                raise dialects.translate(error, target.url) from error
    except SQLAlchemyError as error:
        raise dialects.translate(error, source.url) from error


def _copy_file(source: Path, target: Path) -> None:
    Room(target.parent, 0).require("the database", source.stat().st_size)
    try:
        with closing(sqlite3.connect(source, timeout=dialects.BUSY_TIMEOUT_S)) as original:
            original.execute("PRAGMA query_only=ON")
            with closing(sqlite3.connect(target)) as copied:
                original.backup(copied)
                _settle(copied, source=source)
    except sqlite3.DatabaseError as error:
        raise StoreDamagedError(f"the database cannot be copied: {error}", where=source) from error
    fsync_path(target)


def _settle(copied: sqlite3.Connection, *, source: object) -> None:
    """Merge the log into the database's file, and run the database's own check.

    Raises:
        StoreDamagedError: if it is damaged; the message names the source.
    """
    copied.execute("PRAGMA journal_mode=DELETE")
    flaw = copied.execute("PRAGMA quick_check(1)").fetchone()[0]
    if flaw != "ok":
        raise StoreDamagedError(f"the database is damaged: {flaw}", where=source)


def _size_of(engine: Engine) -> int:
    try:
        with engine.connect() as connection:
            return dialects.size_bytes(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, engine.url) from error
