"""Moves a data directory's blobs to a bucket or back, while no server runs on it.

Committed uploads of live rounds are copied too. They also stay in the directory, where a server can sum them without
the bucket. Servers on other directories of the federation refuse a bucket that was left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from atoll.server.buckets import BucketPlace, open_bucket
from atoll.server.disk.space import Room
from atoll.server.errors import InvalidRequestError
from atoll.server.ingest.bucket_uploads import BucketUploads
from atoll.server.ingest.moving_uploads import fetch_uploads, put_uploads
from atoll.server.ingest.spool import Spool
from atoll.server.stores import (
    BlobDamagedError,
    BlobMissingError,
    DirectoryBlobStore,
    blob_place,
    database_place,
    dialects,
)
from atoll.server.stores.blob_place import BLOBS_FOLDER
from atoll.server.stores.bucket_blobs import BucketBlobStore, key_of
from atoll.server.stores.directory_lock import DirectoryLock
from atoll.server.stores.server_turns import ServerTurn
from atoll.server.stores.store import SPOOL_FOLDER

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the number of blobs done and the total number."""


@dataclass(frozen=True)
class MovedBlobs:
    """The result of a move: names of both places, number and bytes of all blobs, number copied now.

    ``left`` is the old place if it is no longer used; empty if it is, as files that become copies of the bucket's
    blobs.
    """

    source: str
    target: str
    blobs: int
    stored_bytes: int
    copied: int
    left: str


def move_blobs(data: Path, wanted: BucketPlace | None, progress: Progress) -> MovedBlobs:
    """Copy all blobs to another place, and make the data directory use that one.

    Nothing is deleted: files become copies of the bucket's blobs, and objects stay in the bucket. If the move is
    killed, the directory uses its old place, and a repeated move continues. Every blob is compared with its digest.

    Args:
        data: the data directory; no server may run on it.
        wanted: the bucket; None for the directory.
        progress: called after each blob.

    Raises:
        InvalidRequestError: if ``data`` is not a data directory, its blobs are already there, or they are in one bucket
            and another one is wanted.
        StorageError: if bucket, database or disk refuses, the bucket belongs to another federation, or a server runs on
            the directory or its PostgreSQL database.
        CorruptDataError: if a blob is damaged.
    """
    if database_place.find(data) is None:
        message = f"{data} is not a server's data directory"
        raise InvalidRequestError("migrate.data", message, "say where it is with --data")
    with ExitStack() as closing:
        closing.callback(DirectoryLock.take(data).release)
        there = blob_place.find(data)
        if (None if there is None else there.url) == (None if wanted is None else wanted.url):
            place = data / BLOBS_FOLDER if there is None else there
            message = f"the models of {data} are in {place} already"
            raise InvalidRequestError("migrate.same", message, "there is nothing to do")
        require_turn = closing.enter_context(_turn(data))
        if wanted is None:
            return _into_directory(data, progress, require_turn)
        if there is not None:
            raise InvalidRequestError(
                "migrate.between",
                f"the models of {data} are in {there.url}",
                "move them into the directory first, with `--blobs directory`, and from there",
            )
        return _into_bucket(data, wanted, progress, require_turn)


@contextmanager
def _turn(data: Path) -> Iterator[Callable[[], None]]:
    """Take a turn at a PostgreSQL database, which other servers may use; the value raises once the turn is over."""
    url = database_place.choose(data, None)
    if url.get_backend_name() == "sqlite":  # the directory's lock suffices
        yield lambda: None
        return
    engine = dialects.writer_engine(url, turn=ServerTurn())

    def require() -> None:
        try:
            with engine.connect():
                pass
        except SQLAlchemyError as error:
            raise dialects.translate(error, url) from error

    try:
        require()
        yield require
    finally:
        engine.dispose()


def _into_bucket(data: Path, place: BucketPlace, progress: Progress, require_turn: Callable[[], None]) -> MovedBlobs:
    note = blob_place.claim_place(data, place)
    files, bucket = DirectoryBlobStore(data / BLOBS_FOLDER), open_bucket(place)
    there = {found.key: found.size_bytes for found in bucket.listed(BLOBS_FOLDER)}
    held, copied = files.stored(), 0
    for name in _counted(sorted(held), progress):
        if there.get(key_of(name)) != held[name].stored_bytes:
            files.verify(name)
            bucket.put_file(key_of(name), files.path_of(name), held[name].stored_bytes)
            copied += 1
    put_uploads(Spool(data / SPOOL_FOLDER, bucket=BucketUploads(bucket)))
    require_turn()
    blob_place.note(data, note)
    total = sum(facts.stored_bytes for facts in held.values())
    return MovedBlobs(str(files.root), str(place), len(held), total, copied, "")


def _into_directory(data: Path, progress: Progress, require_turn: Callable[[], None]) -> MovedBlobs:
    store = blob_place.open_chosen(data)
    if not isinstance(store, BucketBlobStore):
        raise TypeError(store)
    files, held, copied = store.cache.files, store.stored(), 0
    missing = sum(facts.stored_bytes for name, facts in held.items() if files.facts(name) is None)
    Room(data, 0).require("the models", missing)
    for name in _counted(sorted(held), progress):
        if not _is_whole(files, name):
            files.copy_in(name, store.pieces(name), held[name].stored_bytes)
            copied += 1
    fetch_uploads(Spool(data / SPOOL_FOLDER, bucket=BucketUploads(store.bucket)))
    require_turn()
    blob_place.settle(data, None)
    store.leave()
    total = sum(facts.stored_bytes for facts in held.values())
    place = str(store.bucket.place)
    return MovedBlobs(place, str(files.root), len(held), total, copied, place)


def _is_whole(files: DirectoryBlobStore, name: str) -> bool:
    try:
        files.verify(name)
    except BlobMissingError:
        return False
    except BlobDamagedError as error:
        log.warning("a copy is damaged, and is fetched again: %s", error.logged)
        return False
    return True


def _counted(names: list[str], progress: Progress) -> Iterator[str]:
    for done, name in enumerate(names):
        progress(done, len(names))
        yield name
    progress(len(names), len(names))
