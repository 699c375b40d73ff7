"""Files of small updates, which arrive within their reports: one file each, written and synced immediately.

A file is one record and its payload. Its writer syncs it under a temporary name and then links it to its final name, so
a file with a final name is complete and on the disk. It is not replaced, since it may have been acknowledged: a
participant that sends another update for the same attempt gets the next of a few files. A file that could not be synced
never gets a final name, since after a failed fsync the page cache may hold bytes that are not on the disk (fsync(2)).
Files that a killed server has left under temporary names are never read, and are deleted with their round.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from atoll.server.disk.space import storage_error, write_at
from atoll.server.errors import CorruptDataError, LimitExceededError
from atoll.server.ingest.committed import LOST, UNREADABLE, Committed
from atoll.server.ingest.records import RECORD_BYTES, Record, unpack_record
from atoll.wire.chunks import update_digest
from atoll.wire.status import Recovery

WHOLE = ".whole"
UNFINISHED = ".unfinished"
MOST_FILES = 16
"""Maximum number of different small updates of one participant for one attempt."""
MOST_KEPT = 4096
"""Number of files that ``KeptSmallUpdates`` remembers; the oldest is forgotten first, and would be written again."""


class KeptSmallUpdates:
    """Small updates that this process has made durable, including their folder. Thread-safe.

    A report is repeated if its answer was lost, or if the database refused its row. Its update is then only compared
    with the file, and not written or synced again.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._paths: OrderedDict[tuple[Path, str, Record], Path] = OrderedDict()

    def add(self, folder: Path, participant: str, record: Record, path: Path) -> None:
        """Note that the update is in this file, and that file and folder are on the disk."""
        with self._lock:
            self._paths[folder, participant, record] = path
            if len(self._paths) > MOST_KEPT:
                self._paths.popitem(last=False)

    def has(self, folder: Path, participant: str, record: Record, payload: memoryview) -> bool:
        """Whether this process knows that the update is on the disk, and it is still intact."""
        with self._lock:
            path = self._paths.get((folder, participant, record))
        if path is None:
            return False
        try:
            return path.read_bytes() == content_of(record, payload)
        except OSError:  # missing or unreadable: writing it again gives the precise error
            return False


def whole_path(folder: Path, participant: str, number: int) -> Path:
    """The path of a participant's ``number``-th small update in the folder of an attempt."""
    return folder / f"{participant}.{number}{WHOLE}"


def write_small_update(
    folder: Path, participant: str, record: Record, payload: memoryview, before_making: Callable[[Path], None]
) -> Path:
    """Write and sync an update, but not its folder, which the caller syncs. An identical update is stored once.

    Every system call releases the interpreter's lock and waits for it afterwards, so nothing is looked up that the next
    call reports anyway.

    Args:
        folder: the attempt's folder.
        participant: the update's author.
        record: record of its only chunk, at position ``RECORD_BYTES``.
        payload: the chunk's payload.
        before_making: called with the folder right before it is created, if it does not exist.

    Returns:
        The file with the update.

    Raises:
        LimitExceededError: if the participant has ``MOST_FILES`` others there.
        OSError: if the disk refuses; then the update is not stored.
    """
    content = content_of(record, payload)
    temporary = folder / f"{participant}.{secrets.token_hex(8)}{UNFINISHED}"
    try:
        _write_synced(temporary, content, before_making)
        for number in range(MOST_FILES):
            path = whole_path(folder, participant, number)
            if _named(temporary, path) or path.read_bytes() == content:
                return path
    finally:
        with contextlib.suppress(OSError):  # leftovers are never read, and are deleted with the round
            temporary.unlink()
    raise LimitExceededError(
        "upload.unfinished",
        f"this participant has sent {MOST_FILES} different updates for the round",
        "report one of them",
        recovery=Recovery.NEXT_TASK,
    )


def open_small_update(folder: Path, participant: str, digest: str, number: int) -> Committed | None:
    """Open the participant's ``number``-th small update; None if it does not exist or has another digest.

    Raises:
        CorruptDataError: if its record does not match its checksum, or its payload does not match the record.
        StorageError: if the disk refuses; the update may then be intact.
    """
    path = whole_path(folder, participant, number)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error("storage.spool", UNREADABLE, error, where=path) from error
    if len(raw) < RECORD_BYTES:
        raise CorruptDataError("spool.corrupt", "a part of the stored update is missing", LOST, where=path)
    record = unpack_record(raw[:RECORD_BYTES], path, path.stem)
    if update_digest([record.header]) != digest:
        return None
    update = Committed(folder, [record], {record.segment: memoryview(raw)})
    update.payload(record)  # raises if it is damaged, since another file may have the same update intact
    return update


def content_of(record: Record, payload: memoryview) -> bytes:
    """The content of an update's file."""
    return b"".join((record.pack(), payload))


def _named(temporary: Path, path: Path) -> bool:
    """Give a synced file its final name; False if another one has it.

    Raises:
        OSError: if the disk refuses.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    return True


def _write_synced(path: Path, content: bytes, before_making: Callable[[Path], None]) -> None:
    """Create a file, and its folder if needed, and sync the file.

    Raises:
        OSError: if the disk refuses.
    """
    try:
        descriptor = _created(path)
    except FileNotFoundError:
        before_making(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = _created(path)
    try:
        write_at(descriptor, memoryview(content), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _created(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
