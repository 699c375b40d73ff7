"""Restores a data directory from a backup: everything is verified before anything is written."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from atoll.server.backup.manifest import Manifest, file_entry, read_manifest
from atoll.server.disk.space import Room, fsync_path, storage_error
from atoll.server.errors import CorruptDataError, InvalidRequestError
from atoll.server.identity.files import PRIVATE_MODE, write_atomic
from atoll.server.stores import DirectoryBlobStore, schema_version
from atoll.server.stores.blob_place import BLOBS_FOLDER
from atoll.server.stores.database_place import DATABASE_FILE
from atoll.server.stores.store import RESTORING_FOLDER

RESTORED_FILE = "restored.json"
_PRIVATE_MODE = 0o700
_OF_THE_DISK = "lost+found"  # present in the root of a separate file system
_USE_ANOTHER = "use another backup, or another copy of this one"


@dataclass(frozen=True)
class Restored:
    """A restored backup, and when it was restored (epoch seconds, UTC)."""

    manifest: Manifest
    restored_at: float


def restore(source: Path, data: Path, *, now: float) -> Restored:
    """Restore a data directory from a backup, which is verified first; if anything fails, the directory is emptied.

    All files are written inside ``data``, which may be a mount point, and the database is moved to its place last, so
    no server starts on a directory whose restoration was killed.

    Args:
        source: the backup; it is only read.
        data: the data directory to create; it must not exist or must be empty. An existing directory keeps its mode and
            owner.
        now: epoch seconds, UTC.

    Raises:
        InvalidRequestError: if ``source`` is not a backup that this version reads, or ``data`` is not empty.
        CorruptDataError: if anything in the backup differs from its manifest.
        StorageError: if the disk refuses.
    """
    manifest = read_manifest(source)
    _check_place(data)
    _check_schema(manifest)
    _verify(source, manifest)
    Room(data, 0).require("the data directory", manifest.stored_bytes)
    made, partial = not data.exists(), data / RESTORING_FOLDER
    try:
        data.mkdir(mode=_PRIVATE_MODE, parents=True, exist_ok=True)
        partial.mkdir(mode=_PRIVATE_MODE)  # fails if another restoration has begun, whose files are left alone
    except OSError as error:
        raise storage_error("backup.disk", f"{data} cannot be written", error) from error
    try:
        _copy(source, partial, manifest)
        fact = {"restored_at": now, "made_at": manifest.made_at}
        write_atomic(partial / RESTORED_FILE, json.dumps(fact).encode(), mode=PRIVATE_MODE)
        _move_into_place(partial, data)
        fsync_path(data.absolute().parent)
    except OSError as error:
        _clear(data, whole=made)
        raise storage_error("backup.disk", f"{data} cannot be written", error) from error
    except BaseException:
        _clear(data, whole=made)
        raise
    return Restored(manifest, now)


def last_restoration(data: Path) -> float:
    """The epoch second at which this data directory was restored from a backup; 0 if it was not.

    Raises:
        CorruptDataError: if the file that records it cannot be read.
    """
    path = data / RESTORED_FILE
    try:
        return float(json.loads(path.read_bytes())["restored_at"])
    except FileNotFoundError:
        return 0.0
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptDataError(
            "backup.note", f"{path} cannot be read: {error}", "remove it, or restore again"
        ) from error


def _check_place(data: Path) -> None:
    if data.exists() and (not data.is_dir() or any(path.name != _OF_THE_DISK for path in data.iterdir())):
        raise InvalidRequestError(
            "backup.target",
            f"{data} is not empty",
            "move away what is in it first: a restoration changes nothing that is there",
        )


def _move_into_place(partial: Path, data: Path) -> None:
    for path in sorted(partial.iterdir(), key=lambda path: path.name == DATABASE_FILE):
        if path.name == DATABASE_FILE:
            fsync_path(data)  # all other files are durable
        path.rename(data / path.name)
    fsync_path(data)
    partial.rmdir()


def _clear(data: Path, *, whole: bool) -> None:
    """Return the directory to its former state: empty or absent."""
    if whole:
        shutil.rmtree(data, ignore_errors=True)
        return
    for path in data.iterdir():
        if path.is_dir() and path.name != _OF_THE_DISK:
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)


def _check_schema(manifest: Manifest) -> None:
    if not schema_version.is_known(manifest.schema_revision):
        raise InvalidRequestError(
            "backup.schema",
            f"the backup is of atoll {manifest.atoll}, schema revision {manifest.schema_revision}, which this program "
            "does not know",
            "restore with that version of atoll, or a later one",
        )


def _verify(source: Path, manifest: Manifest) -> None:
    """Compare everything with the manifest, and run the database's own check."""
    if DATABASE_FILE not in {entry.path for entry in manifest.files}:
        raise CorruptDataError("backup.damaged", f"the manifest of {source} names no {DATABASE_FILE}", _USE_ANOTHER)
    for entry in manifest.files:
        try:
            found = file_entry(source, entry.path)
        except OSError as error:
            raise CorruptDataError(
                "backup.damaged", f"{source / entry.path} cannot be read: {error.strerror}", _USE_ANOTHER
            ) from error
        if found != entry:
            raise CorruptDataError("backup.damaged", f"{source / entry.path} was changed", _USE_ANOTHER)
    blobs = DirectoryBlobStore(source / BLOBS_FOLDER)
    for name in manifest.blobs:
        blobs.verify(name)
    flaw = _flaw_of(source / DATABASE_FILE)
    if flaw != "ok":
        raise CorruptDataError("backup.damaged", f"{source / DATABASE_FILE} is damaged: {flaw}", _USE_ANOTHER)


def _flaw_of(database: Path) -> str:
    """The result of the database's own integrity check; "ok" without a fault."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as opened:
            return str(opened.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)


def _copy(source: Path, target: Path, manifest: Manifest) -> None:
    held, wanted = DirectoryBlobStore(source / BLOBS_FOLDER), DirectoryBlobStore(target / BLOBS_FOLDER)
    pairs = [(held.path_of(name), wanted.path_of(name)) for name in manifest.blobs]
    pairs += [(source / entry.path, target / entry.path) for entry in manifest.files]
    for original, copied in pairs:
        copied.parent.mkdir(exist_ok=True, mode=_PRIVATE_MODE)
        copied.touch(mode=PRIVATE_MODE)
        shutil.copyfile(original, copied)
        copied.chmod(original.stat().st_mode & 0o644)
        fsync_path(copied)
    for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        fsync_path(folder)
