"""Makes a backup while the server runs."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection

import atoll.server
from atoll.server.backup.copies import copy_to_file
from atoll.server.backup.manifest import Manifest, RunLine, file_entry
from atoll.server.disk.space import fsync_path, storage_error
from atoll.server.errors import InvalidRequestError, UnavailableError
from atoll.server.jobs import parse_job, to_run_policy
from atoll.server.rounds import Phase, RunStatus, initial
from atoll.server.runs.journal import replayed
from atoll.server.stores import (
    BlobMissingError,
    DirectoryBlobStore,
    Reader,
    blob_place,
    database_place,
    dialects,
    models,
    runs,
    schema_version,
)
from atoll.server.stores.blob_place import BLOBS_FOLDER
from atoll.server.stores.bucket_blobs import BucketBlobStore
from atoll.server.stores.database_place import DATABASE_FILE

CA_FOLDER, OPERATOR_FILE = "ca", "operator.json"
_PRIVATE_MODE = 0o700
_ATTEMPTS = 200
_BETWEEN_S = 0.05
_ALL = 1 << 30


def back_up(data: Path, destination: Path, *, now: float, copy: bool = False) -> Manifest:
    """Make a backup atomically. Rounds continue meanwhile, but no model is removed.

    Args:
        data: the server's data directory.
        destination: a folder that does not exist yet.
        now: epoch seconds, UTC.
        copy: copy models even where they could be hard-linked; linked files share disk blocks.

    Raises:
        InvalidRequestError: if ``data`` is not a server's directory, or the destination exists.
        StorageError: if the disk refuses.
        CorruptDataError: if database or models are damaged; then keep older backups.
        UnavailableError: if a release takes too long between its sum and its charge.
    """
    place = database_place.find(data)
    if place is None:
        raise InvalidRequestError(
            "backup.data", f"{data} is not a server's data directory", "say where it is with --data"
        )
    with _new_folder(destination) as folder:
        blobs = blob_place.open_chosen(data)
        with blobs.kept():
            _copy_settled_database(place, folder / DATABASE_FILE)
            reader = Reader(dialects.reader_engine(dialects.sqlite_url(folder / DATABASE_FILE), connections=1))
            try:
                named = reader.submit(models.to_keep, keep=_ALL, ended_before=0.0).result()
                vital = reader.submit(_vital).result()
                lines = reader.submit(_lines).result()
            finally:
                reader.close()
            held = _take_blobs(blobs, folder / BLOBS_FOLDER, named, vital, copy=copy)
        files = [DATABASE_FILE, *_copy_identity(data, folder)]
        entries = tuple(file_entry(folder, path) for path in files)
        manifest = Manifest(
            atoll=atoll.server.__version__,
            schema_revision=schema_version.head_revision(),
            made_at=now,
            runs=lines,
            files=entries,
            blobs=tuple(sorted(held)),
            stored_bytes=sum(entry.size_bytes for entry in entries) + sum(held.values()),
        )
        manifest.write(folder)
    return manifest


@contextmanager
def _new_folder(destination: Path) -> Iterator[Path]:
    """A temporary folder next to the destination, which is renamed to it at the end."""
    if destination.exists() or destination.is_symlink():
        raise InvalidRequestError("backup.exists", f"{destination} exists already", "name a new folder")
    temporary = destination.absolute().with_name(f".{destination.name}.{secrets.token_hex(6)}.partial")
    try:
        temporary.mkdir(mode=_PRIVATE_MODE, parents=True)
        yield temporary
        for folder in [path for path in temporary.rglob("*") if path.is_dir()]:
            fsync_path(folder)
        fsync_path(temporary)
        temporary.rename(destination)
        fsync_path(destination.absolute().parent)
    except OSError as error:
        raise storage_error("backup.disk", f"the backup {destination} cannot be written", error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_settled_database(source: URL, target: Path) -> None:
    """Copy the database at a moment when no running release is between its sum and its charge.

    In between, for milliseconds, the next model exists but no row refers to it. It could be made again only from
    uploads, which are not in a backup, so the round would be repeated after a restoration. This happens to a private
    round whose sum waits for budget.
    """
    _require_known(source)
    tick = threading.Event()
    for _ in range(_ATTEMPTS):
        target.unlink(missing_ok=True)
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        copy_to_file(source, target)
        reader = Reader(dialects.reader_engine(dialects.sqlite_url(target), connections=1))
        try:
            if reader.submit(_is_settled).result():
                return
        finally:
            reader.close()
        tick.wait(_BETWEEN_S)
    raise UnavailableError("backup.unsettled", "a run hangs in the release of a round", "see why in `atoll run show`")


def _require_known(source: URL) -> None:
    """Refuse a database that a newer version has upgraded, since the manifest has this version's schema."""
    engine = dialects.reader_engine(source, connections=1)
    try:
        schema_version.require_known(engine)
    finally:
        engine.dispose()


def _is_settled(connection: Connection) -> bool:
    active = [status.value for status in RunStatus if not status.ended]
    for run in runs.with_status(connection, active):
        first = initial(run.id, to_run_policy(parse_job(run.job_toml, f"the job of run {run.id}")), run.initial_model)
        state = replayed(connection, first).state
        running = state.status is RunStatus.RUNNING  # a round may wait for budget for days
        if running and state.round is not None and state.round.phase is Phase.AGGREGATED:
            return False
    return True


def _vital(connection: Connection) -> frozenset[str]:
    """Blobs without which a run could not continue, or its result would be lost."""
    found: set[str] = set()
    for run in runs.listed(connection, project=None, limit=_ALL):
        newest = models.latest(connection, run.id)
        if newest is not None:
            found.update(blob for blob in (newest.blob, newest.average_blob) if blob)
            if run.finished_at is None:
                found.update(blob for _, blob in newest.optimiser_blobs)
    return frozenset(found)


def _lines(connection: Connection) -> tuple[RunLine, ...]:
    return tuple(
        RunLine(run=run.id, name=run.name, status=run.status, rounds_released=run.rounds_released)
        for run in runs.listed(connection, project=None, limit=_ALL)
    )


def _take_blobs(
    blobs: DirectoryBlobStore | BucketBlobStore,
    target: Path,
    named: frozenset[str],
    vital: frozenset[str],
    *,
    copy: bool,
) -> dict[str, int]:
    """Link or copy and verify every existing blob; returns sizes by name. Vital blobs must exist."""
    kept = DirectoryBlobStore(target)
    held = blobs.stored()
    there = sorted(name for name in named if name in vital or name in held)
    for name in there:
        if isinstance(blobs, BucketBlobStore):
            _fetch(blobs, kept, name, vital=name in vital)
            continue
        blobs.verify(name)
        path = kept.path_of(name)
        path.parent.mkdir(exist_ok=True, mode=_PRIVATE_MODE)
        _link_or_copy(blobs.path_of(name), path, copy=copy)
    return {name: facts.stored_bytes for name, facts in kept.stored().items()}


def _fetch(blobs: BucketBlobStore, kept: DirectoryBlobStore, name: str, *, vital: bool) -> None:
    """Copy a blob from a bucket, unless the active server, on another machine, has just deleted it as surplus."""
    try:
        kept.copy_in(name, blobs.pieces(name))
    except BlobMissingError:
        if vital:
            raise


def _link_or_copy(source: Path, target: Path, *, copy: bool) -> None:
    if not copy:
        try:
            target.hardlink_to(source)
        except OSError:  # another disk, or a file system without hard links
            copy = True
    if copy:
        shutil.copyfile(source, target)
        target.chmod(0o600)
        fsync_path(target)


def _copy_identity(data: Path, folder: Path) -> list[str]:
    """Copy the certificate authority and the operator's credential with their modes; returns their paths."""
    sources = [path for path in (data / CA_FOLDER).glob("*") if path.is_file() and not path.name.startswith(".")]
    found = []
    for path in [*sorted(sources), data / OPERATOR_FILE]:
        if path.exists():
            target = folder / path.relative_to(data)
            target.parent.mkdir(exist_ok=True, mode=_PRIVATE_MODE)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(path.read_bytes())
                file.flush()
                os.fsync(file.fileno())
            target.chmod(path.stat().st_mode & 0o644)
            found.append(str(path.relative_to(data)))
    return found
