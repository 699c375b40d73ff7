"""Disk usage of a data directory by kind and run; read-only, so it works while the server runs."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from atoll.server.disk.space import free_bytes
from atoll.server.stores import blob_place, database_place, dialects, event_log, models, runs
from atoll.server.stores.blob_place import BLOBS_FOLDER, AnyBlobStore
from atoll.server.stores.bucket_blobs import UPLOADS_FOLDER, BucketBlobStore
from atoll.server.stores.directory_blobs import FREE
from atoll.server.stores.errors import SchemaError
from atoll.server.stores.incoming_files import INCOMING
from atoll.server.stores.schema import snapshots as snapshot_rows
from atoll.server.stores.store import PARTIALS_FOLDER, SPOOL_FOLDER

_MOST_RUNS = 10_000


@dataclass(frozen=True)
class Held:
    """Files of one kind and one run; ``run`` is empty for files of no run or of all runs.

    ``stored_bytes`` of database rows is an estimate, and is included in the database's own size. Items with
    ``elsewhere`` take no space in the data directory.
    """

    kind: str
    run: str
    count: int
    stored_bytes: int
    in_database: bool = False
    elsewhere: bool = False


@dataclass(frozen=True)
class StorageUse:
    """Disk usage of a data directory, and the free space of its disk."""

    held: tuple[Held, ...]
    free_bytes: int

    @property
    def stored_bytes(self) -> int:
        """Bytes in the data directory, each counted once."""
        return sum(one.stored_bytes for one in self.held if not (one.in_database or one.elsewhere))


def storage_use(data: Path) -> StorageUse:
    """Measure a data directory.

    Raises:
        SchemaError: if there is no database in it.
        StoreUnavailableError, StoreDamagedError: if the database cannot be read.
        StorageError: if the bucket of its blobs refuses or does not answer.
    """
    url = database_place.find(data)
    if url is None:
        raise SchemaError(f"{data} is not a server's data directory", "say where it is with --data")
    blobs = blob_place.open_chosen(data)
    engine = dialects.reader_engine(url, connections=1)
    try:
        with engine.connect() as connection, connection.begin():
            held = [
                *_blobs(connection, blobs),
                *_cached(blobs),
                *_folder("unfinished blobs", data / BLOBS_FOLDER / INCOMING),
                *_uploads(data / SPOOL_FOLDER),
                *_uploads_in_bucket(blobs),
                *_folder("free files", data / BLOBS_FOLDER / FREE),
                *_folder("partial sums", data / PARTIALS_FOLDER),
                *_database(connection, data),
                *_logs(connection),
            ]
    except SQLAlchemyError as error:
        raise dialects.translate(error, url) from error
    finally:
        engine.dispose()
    return StorageUse(tuple(held), free_bytes(data))


def _cached(blobs: AnyBlobStore) -> Iterator[Held]:
    """Usage of the cached copies of a bucket's blobs."""
    if isinstance(blobs, BucketBlobStore):
        sizes = [facts.stored_bytes for facts in blobs.cache.files.stored().values()]
        if sizes:
            yield Held("cached models", "", len(sizes), sum(sizes))


def _blobs(connection: Connection, blobs: AnyBlobStore) -> Iterator[Held]:
    """Count each blob once: for the oldest run that uses it, and as a model rather than a state."""
    owners: dict[str, tuple[str, str]] = {}
    for run in reversed(runs.listed(connection, project=None, limit=_MOST_RUNS)):
        named = models.listed(connection, run.id)
        for model in named:
            owners.setdefault(model.blob, ("models", run.id))
        for model in named:
            for _, blob in model.optimiser_blobs:
                owners.setdefault(blob, ("optimiser states", run.id))
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name, facts in blobs.stored().items():
        found[owners.get(name, ("unnamed blobs", ""))].append(facts.stored_bytes)
    elsewhere = isinstance(blobs, BucketBlobStore)
    for (kind, owner), sizes in sorted(found.items()):
        yield Held(kind, owner, len(sizes), sum(sizes), elsewhere=elsewhere)


def _database(connection: Connection, data: Path) -> Iterator[Held]:
    if connection.dialect.name != "sqlite":
        yield Held("database", "", 1, dialects.size_bytes(connection), elsewhere=True)
        return
    sizes = database_place.sqlite_bytes(data)
    yield Held("database", "", len(sizes), sum(sizes))


def _logs(connection: Connection) -> Iterator[Held]:
    """The part of the database that grows with runs' events and is pruned."""
    for run in reversed(runs.listed(connection, project=None, limit=_MOST_RUNS)):
        events = event_log.held(connection, run.id)
        if events.count:
            yield Held("event log", run.id, events.count, events.stored_bytes, in_database=True)
        size = func.sum(func.length(snapshot_rows.c.body))
        row = connection.execute(select(func.count(), size).where(snapshot_rows.c.run_id == run.id)).one()
        if row[0]:
            yield Held("snapshots", run.id, row[0], int(row[1]), in_database=True)


def _uploads(root: Path) -> Iterator[Held]:
    """One entry per run's folder, and one for files that later uploads will overwrite."""
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        hidden = folder.name.startswith(".")
        yield from _folder("free files" if hidden else "uploads", folder, "" if hidden else folder.name)


def _uploads_in_bucket(blobs: AnyBlobStore) -> Iterator[Held]:
    """One entry per run."""
    if isinstance(blobs, BucketBlobStore):
        sizes: dict[str, list[int]] = defaultdict(list)
        for found in blobs.bucket.listed(UPLOADS_FOLDER):
            sizes[found.key.split("/")[1]].append(found.size_bytes)
        for run, held in sorted(sizes.items()):
            yield Held("uploads", run, len(held), sum(held), elsewhere=True)


def _folder(kind: str, root: Path, run: str = "") -> Iterator[Held]:
    count = stored = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                stored += (Path(folder) / name).stat().st_size
            except FileNotFoundError:  # the running server has removed it
                continue
            count += 1
    if count:
        yield Held(kind, run, count, stored)
