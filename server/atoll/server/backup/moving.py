"""Moves a data directory's database to a database server or back, while no server runs on it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Engine

from atoll.server.backup.copies import copy_all, copy_from_server
from atoll.server.disk.space import fsync_path, storage_error
from atoll.server.errors import InvalidRequestError
from atoll.server.identity.files import PRIVATE_MODE
from atoll.server.stores import database_place, dialects, schema_version
from atoll.server.stores.database_place import DATABASE_FILE, LOG_SUFFIXES, PLACE_FILE
from atoll.server.stores.directory_lock import DirectoryLock
from atoll.server.stores.server_turns import ServerTurn, retire

LEFT_FILE = f"{DATABASE_FILE}.moved"
"""The SQLite database's new name after its rows have moved to a database server."""


@dataclass(frozen=True)
class Moved:
    """The result of a move: names of both databases, rows by table, and the old database's remains."""

    source: str
    target: str
    rows: Mapping[str, int]
    left: str


def move_database(data: Path, wanted: URL | None) -> Moved:
    """Copy the whole database to another place, and make the data directory use that one.

    Nothing is deleted: the old database stays unchanged, under another name if it is a file. At the server's next start
    runs continue where they were, even in the middle of a round, because models and uploads stay in the directory. If
    the move is killed, the directory uses either the old database or the new one.

    Args:
        data: the data directory; no server may run on it.
        wanted: URL of an empty PostgreSQL database; None for SQLite in the directory.

    Raises:
        InvalidRequestError: if ``data`` is not a data directory, its database is already there, or the new one has
            rows.
        StorageError: if a database or disk refuses, or a server runs on the directory or on either database.
        CorruptDataError: if the database is damaged.
    """
    if database_place.find(data) is None:
        message = f"{data} is not a server's data directory"
        raise InvalidRequestError("migrate.data", message, "say where it is with --data")
    with ExitStack() as closing:
        closing.callback(DirectoryLock.take(data).release)
        source = dialects.writer_engine(_other_place(data, wanted), turn=ServerTurn())
        closing.callback(source.dispose)
        schema_version.upgrade(source)
        schema_version.require_known(source)
        return _into_directory(data, source) if wanted is None else _to_server(data, source, wanted)


def _other_place(data: Path, wanted: URL | None) -> URL:
    """The place of a locked directory's database, which must differ from the wanted one."""
    there = database_place.choose(data, None)
    if there == wanted or (wanted is None and there.get_backend_name() == "sqlite"):
        place = dialects.shown(there)
        raise InvalidRequestError(
            "migrate.same", f"the database of {data} is {place} already", "there is nothing to do"
        )
    return there


def _to_server(data: Path, source: Engine, wanted: URL) -> Moved:
    target = dialects.writer_engine(wanted, turn=ServerTurn())
    try:
        if not schema_version.is_empty(target):
            raise InvalidRequestError(
                "migrate.target",
                f"{dialects.shown(wanted)} holds the state of a server",
                "name an empty database; if a move to it was killed, drop it and create it again",
            )
        rows = copy_all(source, target)
    finally:
        target.dispose()
    database_place.note(data, wanted)
    retire(source)
    left = dialects.shown(source.url)
    source.dispose()  # SQLite merges its log into the file
    if source.dialect.name == "sqlite":
        _set_aside(data)
        left = str(data / LEFT_FILE)
    return Moved(dialects.shown(source.url), dialects.shown(wanted), rows, left)


def _into_directory(data: Path, source: Engine) -> Moved:
    partial, place = data / f".{DATABASE_FILE}.{secrets.token_hex(6)}.partial", data / DATABASE_FILE
    try:
        for left in data.glob(f".{DATABASE_FILE}.*.partial*"):  # left by a move that was killed
            left.unlink()
        partial.touch(mode=PRIVATE_MODE, exist_ok=False)
        rows = copy_from_server(source.url, partial)
        _set_aside(data)
        partial.replace(place)
        fsync_path(data)
        (data / PLACE_FILE).unlink()
        fsync_path(data)
        retire(source)
    except OSError as error:
        raise storage_error("migrate.disk", f"{data} cannot be written", error) from error
    finally:
        partial.unlink(missing_ok=True)
    return Moved(dialects.shown(source.url), str(place), rows, dialects.shown(source.url))


def _set_aside(data: Path) -> None:
    """Rename the SQLite file and its logs, which remain if another process reads it or a move was killed.

    If left in place, the logs would be applied to the next file of that name.
    """
    file, left = data / DATABASE_FILE, data / LEFT_FILE
    try:
        if file.exists():
            for suffix in LOG_SUFFIXES:
                left.with_name(left.name + suffix).unlink(missing_ok=True)
            file.replace(left)
        for suffix in LOG_SUFFIXES:
            with suppress(FileNotFoundError):
                file.with_name(file.name + suffix).replace(left.with_name(left.name + suffix))
        fsync_path(data)
    except OSError as error:
        raise storage_error("migrate.disk", f"{file} cannot be renamed", error) from error
