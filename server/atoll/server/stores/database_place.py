"""The place of a data directory's database: the directory, or a database server whose URL the directory has noted.

Models, uploads and keys stay in the directory, and rows refer to them, so the two belong together. A directory never
changes its database silently, and every command that is given the directory finds the database.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL

from atoll.server.errors import CorruptDataError
from atoll.server.identity.files import PRIVATE_MODE, write_atomic
from atoll.server.stores import dialects
from atoll.server.stores.errors import SchemaError, StoreUnavailableError

DATABASE_FILE = "atoll.sqlite3"
LOG_SUFFIXES = ("-wal", "-shm")
"""Suffixes of SQLite's log files. SQLite applies a log to any file that has its name without the suffix."""
PLACE_FILE = "database.json"


def find(directory: Path) -> URL | None:
    """Return the URL of a directory's database; None if it has none yet.

    Raises:
        CorruptDataError: if the directory's note cannot be read.
    """
    path = directory / DATABASE_FILE
    return noted(directory) or (dialects.sqlite_url(path) if path.exists() else None)


def sqlite_bytes(directory: Path) -> list[int]:
    """Return the sizes of SQLite's files in a directory; empty if the database is elsewhere."""
    found = []
    for suffix in ("", *LOG_SUFFIXES):
        with suppress(OSError):  # missing, or removed meanwhile
            found.append((directory / f"{DATABASE_FILE}{suffix}").stat().st_size)
    return found


def noted(directory: Path) -> URL | None:
    """Return the URL that a directory has noted, or None.

    Raises:
        CorruptDataError: if the note cannot be read.
    """
    path = directory / PLACE_FILE
    try:
        return dialects.parse_url(json.loads(path.read_bytes())["database"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        remedy = 'write {"database": "postgresql://user@host/name"} into it, with the URL of its database'
        raise CorruptDataError("store.place", f"{path} cannot be read: {error}", remedy) from error


def note(directory: Path, url: URL) -> None:
    """Write the note of the URL of a directory's database, durably.

    Raises:
        StoreUnavailableError: if the directory cannot be written.
    """
    text = json.dumps({"database": url.render_as_string(hide_password=False)})
    try:
        write_atomic(directory / PLACE_FILE, text.encode(), mode=PRIVATE_MODE)
    except OSError as error:
        raise StoreUnavailableError(
            f"{directory / PLACE_FILE} cannot be written: {error.strerror}",
            "make the data directory writable for the server's account",
        ) from error


def choose(directory: Path, wanted: URL | None) -> URL:
    """Return the database that a server on this directory uses.

    Args:
        directory: the data directory.
        wanted: the URL in the settings; None for the noted one, or for SQLite in a new directory.

    Raises:
        SchemaError: if the directory has another database.
    """
    there = find(directory)
    if wanted is None or there == wanted:
        return there or dialects.sqlite_url(directory / DATABASE_FILE)
    if there is None:
        return wanted
    raise SchemaError(
        f"the database of {directory} is {dialects.shown(there)}, and the settings name {dialects.shown(wanted)}",
        "move it there with `atoll server migrate`, or correct the setting",
    )
