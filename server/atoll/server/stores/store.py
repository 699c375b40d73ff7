"""The durable state of one server: opens and closes database and blobs together."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Engine

from atoll.server.buckets import BucketUnavailableError
from atoll.server.stores import blob_place, database_place, dialects, schema_version
from atoll.server.stores.blob_place import IN_DIRECTORY, BlobSettings
from atoll.server.stores.blobs import BlobStore
from atoll.server.stores.bucket_blobs import BucketBlobStore
from atoll.server.stores.database_place import DATABASE_FILE
from atoll.server.stores.directory_lock import DirectoryLock
from atoll.server.stores.errors import SchemaError, StoreUnavailableError
from atoll.server.stores.reader import THREADS, Reader
from atoll.server.stores.server_turns import ServerTurn
from atoll.server.stores.standby import Standby
from atoll.server.stores.writer import Writer

log = logging.getLogger(__name__)

SPOOL_FOLDER = "spool"
PARTIALS_FOLDER = "partials"
RESTORING_FOLDER = ".restoring"
"""Folder that a backup is copied to; it exists until the last file, the database, has been moved out of it."""
_FILE_MODE = 0o600


@dataclass(frozen=True)
class Store:
    """The database, with one writer and several readers, and the blobs; ``turn`` is the server's at PostgreSQL."""

    writer: Writer
    reader: Reader
    blobs: BlobStore
    lock: DirectoryLock | None = None
    turn: ServerTurn | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        url: str | None = None,
        blob_settings: BlobSettings = IN_DIRECTORY,
        primary: bool = True,
        standby: Standby | None = None,
        reader_threads: int = THREADS,
        writer_type: type[Writer] = Writer,
        reader_type: type[Reader] = Reader,
    ) -> Store:
        """Open the state kept in ``directory``, or create it; the calls block for a moment.

        Args:
            directory: the data directory: blobs and, unless another one is chosen, the SQLite database.
            url: another database, such as ``postgresql://user@host/atoll``, which the directory then notes; None for
                the noted one.
            blob_settings: the place of the blobs; the directory notes a bucket and uses the noted one.
            primary: act as the one server of this directory: lock it, upgrade the schema, and remove leftovers of
                killed processes. Other processes only check that the schema is up to date.
            standby: waits while another server uses the PostgreSQL database; None if the database must be free.
            reader_threads: number of concurrent reads.
            writer_type: runs writes; a simulation uses one that does so in the caller's thread.
            reader_type: runs reads.

        Raises:
            SchemaError: if the database is newer and does not allow this version, is not Atoll's, belongs to another
                directory, or (not ``primary``) is missing or older.
            StoreDamagedError: if the database is damaged.
            StoreUnavailableError: if the directory or database cannot be used, or another server runs on it.
            StorageError: if the bucket cannot be used, or is another federation's.
            StandbyEndedError: if ``standby`` was ended.
        """
        lock = DirectoryLock.take(directory) if primary else None
        turn = ServerTurn() if primary else None
        try:
            _require_restored(directory)
            opening = partial(blob_place.open_chosen, directory, blob_settings, primary=lock is not None)
            blobs = opening() if standby is None else standby.opened(opening)
            engines = _open_locked(directory, url, turn, standby, reader_threads, blobs)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        writing, reading = engines
        return cls(
            writer_type(writing),
            reader_type(reading, threads=reader_threads),
            blobs,
            lock,
            None if writing.dialect.name == "sqlite" else turn,
        )

    def close(self) -> None:
        """Finish waiting work and close everything; blocks until done."""
        self.writer.close()
        self.reader.close()
        if self.lock is not None:
            self.blobs.close()
            self.lock.release()


def _open_locked(
    directory: Path,
    url: str | None,
    turn: ServerTurn | None,
    standby: Standby | None,
    reader_threads: int,
    blobs: BlobStore,
) -> tuple[Engine, Engine]:
    """Open the engines that write and read."""
    place = database_place.choose(directory, None if url is None else dialects.parse_url(url))
    if place.get_backend_name() == "sqlite":
        _make_private(directory / DATABASE_FILE, create=turn is not None)
    engine = dialects.writer_engine(place, turn=turn, name="" if standby is None else standby.server_name)
    try:
        if standby is not None and place.get_backend_name() != "sqlite":
            standby.begin(engine, in_use=lambda: _require_noted(directory, engine))
            _require_still_owned(blobs)
        if turn is not None:
            _use(engine, directory, blobs, standby)
            blobs.sweep()
            _remove_partials(directory / PARTIALS_FOLDER)
        else:
            schema_version.require_usable(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine, dialects.reader_engine(place, connections=reader_threads)


def _require_still_owned(blobs: BlobStore) -> None:
    """Refuse a bucket that the federation left while this server stood by; an unreachable one is waited for later."""
    if isinstance(blobs, BucketBlobStore):
        try:
            blobs.require_owner()
        except BucketUnavailableError as error:
            log.warning("the models cannot be reached: %s", error)


def _require_restored(directory: Path) -> None:
    if any((directory / RESTORING_FOLDER).glob("*")):
        raise SchemaError(
            f"the restoration of {directory} was not completed", "empty it, then restore the backup again"
        )


def _use(engine: Engine, directory: Path, blobs: BlobStore, standby: Standby | None) -> None:
    """Upgrade the schema, then note the database server in the directory, so that only a usable one is noted."""
    if engine.dialect.name == "sqlite":
        schema_version.upgrade(engine)
        return
    _require_match(engine, directory, blobs)
    schema_version.upgrade(engine, others=None if standby is None else standby.others)
    database_place.note(directory, engine.url)


def _require_match(engine: Engine, directory: Path, blobs: BlobStore) -> None:
    """Refuse a database whose rows do not belong to the directory's models."""
    if not schema_version.is_empty(engine):
        _require_noted(directory, engine)
    elif next(blobs.names(), None) is not None:
        raise SchemaError(
            f"the database {dialects.shown(engine.url)} is empty, and {directory} holds models",
            "restore the database from its backup, or choose a new data directory",
        )


def _require_noted(directory: Path, engine: Engine) -> None:
    """Refuse a database in use that the directory has not noted: it may be another federation's."""
    if database_place.noted(directory) is None:
        raise SchemaError(
            f"the database {dialects.shown(engine.url)} holds the state of a server, and {directory} is not its data "
            "directory",
            "name the directory that was used with it (--data), or an empty database; `atoll server standby` makes the "
            "directory of a server that stands by",
        )


def _remove_partials(folder: Path) -> None:
    """Delete a killed server's partial sums; all updates are folded again."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        log.warning("%s, unused partial sums, could not be removed", folder)


def _make_private(path: Path, *, create: bool) -> None:
    """Make the embedded database's file readable by the owner only; its log files inherit that."""
    if path.exists():
        return
    if not create:
        raise SchemaError(f"there is no database {path} yet", "start the main server process first")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
    except OSError as error:
        raise StoreUnavailableError(
            f"database {path}: {error.strerror}",
            "make the data directory and its files writable for the server's account",
        ) from error
