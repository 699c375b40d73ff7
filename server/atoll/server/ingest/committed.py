"""Committed uploads: the list of their records, and their payloads as views into the page cache."""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atoll.server.disk.file_locks import share
from atoll.server.disk.space import storage_error
from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.errors import CorruptDataError, NotFoundError
from atoll.server.ingest.records import RECORD_BYTES, Record, unpack_record
from atoll.server.ingest.segment import DATA
from atoll.wire.chunks import update_digest

COMMITTED = ".committed"
UPLOAD_ID_CHARS = 32
SEGMENT_NAME_CHARS = 16
LOST = "the round continues without this upload"
UNREADABLE = "a stored update cannot be read"


@dataclass(frozen=True)
class Committed:
    """A committed upload, open for reading."""

    folder: Path
    records: list[Record]
    maps: dict[str, memoryview]

    def payload(self, record: Record) -> memoryview:
        """The payload of a record: a view into the page cache, checked against its checksum.

        Raises:
            CorruptDataError: if the file is too short or the payload does not match its checksum.
        """
        view = payload_in(self.maps[record.segment], record)
        if view is None:
            raise CorruptDataError(
                "spool.corrupt",
                f"the chunk at byte {record.position} of the stored update does not match its checksum",
                LOST,
                where=self.folder / record.segment,
            )
        return view


def pack_committed(upload_id: str, records: Iterable[Record]) -> bytes:
    """The list of an upload's chosen records, as stored on disk."""
    rows = (record.segment.encode("ascii") + record.pack() for record in records)
    return b"".join((upload_id.encode("ascii"), *rows))


@contextlib.contextmanager
def open_committed(path: Path, digest: str) -> Iterator[Committed]:
    """Open a committed upload, given the path of its list; its data files are memory-mapped.

    Raises:
        NotFoundError: if it does not exist.
        CorruptDataError: if the list does not match ``digest``, or a data file is missing.
        StorageError: if the disk refuses; the upload may then be intact.
    """
    upload_id, records = _read(path, digest)
    folder = path.parent / upload_id
    try:
        maps = {name: map_segment(folder, name) for name in {record.segment for record in records}}
    except (FileNotFoundError, ValueError) as error:
        raise CorruptDataError(
            "spool.corrupt", "a part of the stored update cannot be read", LOST, where=f"{path}: {error}"
        ) from error
    except OSError as error:
        raise storage_error("storage.spool", UNREADABLE, error) from error
    yield Committed(folder, records, maps)


def map_segment(folder: Path, name: str) -> memoryview:
    """Map the payloads of a segment into memory; the file is not overwritten while there are views of it.

    Raises:
        OSError: if it cannot be opened or is being removed.
        ValueError: if it is empty.
    """
    path = folder / f"{name}{DATA}"
    with path.open("rb") as file:
        # the lock belongs to the open file, which the map keeps open
        if not share(file.fileno(), path):
            raise FileNotFoundError(errno.ENOENT, "it has just been removed", str(path))
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def payload_in(data: memoryview, record: Record) -> memoryview | None:
    """A record's payload within its segment; None if it is truncated or does not match its checksum."""
    view = data[record.position : record.position + record.header.payload_bytes]
    whole = view.nbytes == record.header.payload_bytes and stored_checksum(view) == record.checksum
    return view if whole else None


def _read(path: Path, digest: str) -> tuple[str, list[Record]]:
    """Upload id and records, checked against the digest in the file's name."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError("spool.missing", "the stored update is gone", LOST, where=path) from None
    except OSError as error:
        raise storage_error("storage.spool", UNREADABLE, error, where=path) from error
    return read_committed(raw, digest, path)


def read_committed(raw: bytes, digest: str, path: Path) -> tuple[str, list[Record]]:
    """Upload id and records in a list by ``pack_committed``.

    Raises:
        CorruptDataError: if they do not make up the update with that digest; ``path`` is for the message.
    """
    size = SEGMENT_NAME_CHARS + RECORD_BYTES
    records = []
    for at in range(UPLOAD_ID_CHARS, len(raw) - size + 1, size):
        name = raw[at : at + SEGMENT_NAME_CHARS].decode("ascii", "replace")
        records.append(unpack_record(raw[at + SEGMENT_NAME_CHARS : at + size], path, name))
    if update_digest([record.header for record in records]) != digest:
        raise CorruptDataError(
            "spool.corrupt", "the stored records do not make up the update that was acknowledged", LOST, where=path
        )
    return raw[:UPLOAD_ID_CHARS].decode("ascii", "replace"), records
