"""The spool: where uploads lie between their first chunk and the release of their round."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from atoll.server.errors import CorruptDataError, InvalidRequestError, NotFoundError, ServerError
from atoll.server.ingest.records import RECORD_BYTES, Record, read_index, unpack_record
from atoll.wire.chunks import ChunkHeader, UploadKey, update_digest
from atoll.wire.digest import chunk_digest

_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")
_SEGMENT_NAME_BYTES = 16
_UPLOAD_ID_BYTES = 32


@dataclass(frozen=True, slots=True)
class UploadRef:
    """One upload of one participant for one attempt of a round."""

    run: str
    round: int
    attempt: int
    participant: str
    upload_id: str

    @classmethod
    def of(cls, key: UploadKey, participant: str) -> UploadRef:
        """The reference for a key as it came over the wire.

        Raises:
            InvalidRequestError: if the upload id is not 32 hex digits (it becomes a folder name).
        """
        if not _UPLOAD_ID.fullmatch(key.upload_id):
            raise InvalidRequestError("upload.id", f"upload_id {key.upload_id[:40]!r}: needs 32 hexadecimal digits")
        return cls(key.run, key.round, key.attempt, participant, key.upload_id)


class Segment:
    """The file pair of one upload stream, being written. Not thread-safe: one stream, one writer."""

    def __init__(self, folder: Path) -> None:
        self.name = secrets.token_hex(_SEGMENT_NAME_BYTES // 2)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._data = os.open(folder / f"{self.name}.data", flags, 0o600)
        try:
            self._index = os.open(folder / f"{self.name}.index", flags, 0o600)
        except OSError:
            os.close(self._data)
            raise
        self._position = 0

    def append(self, header: ChunkHeader, payload: memoryview, max_abs: float, sum_squares: float) -> None:
        """Write a payload and then its record, so that a record always has its payload.

        Raises:
            OSError: if the disk refuses; the segment then ends at the last whole record.
        """
        record = Record(header, self.name, self._position, max_abs, sum_squares)
        _write_all(self._data, payload)
        self._position += payload.nbytes
        _write_all(self._index, memoryview(record.pack()))

    def close(self) -> None:
        """Close both files."""
        os.close(self._data)
        os.close(self._index)


class Spool:
    """All uploads under one folder; every process of the server may open it at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def folder(self, upload: UploadRef) -> Path:
        """Where the segments of an upload lie."""
        return self.round_folder(upload.run, upload.round, upload.attempt) / upload.participant / upload.upload_id

    def round_folder(self, run: str, round_number: int, attempt: int) -> Path:
        """Where all uploads of one attempt of a round lie."""
        return self.root / run / f"{round_number}.{attempt}"

    def open_segment(self, upload: UploadRef) -> Segment:
        """A new segment of an upload."""
        folder = self.folder(upload)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Segment(folder)

    def received(self, upload: UploadRef) -> list[Record]:
        """What has arrived of an upload, one record per range, ordered by range.

        A chunk that arrived twice (a stream broke before its answer) counts once; two different chunks for the same
        range are both listed and fail the coverage check.
        """
        chosen: dict[tuple[object, bytes], Record] = {}
        folder = self.folder(upload)
        for path in sorted(folder.glob("*.index")):
            for record in read_index(path):
                chosen.setdefault((record.header.range, record.header.digest), record)
        return sorted(chosen.values(), key=lambda record: record.header.range)

    def commit(self, upload: UploadRef, records: list[Record]) -> str:
        """Make an upload durable: its segments, the list of chosen records, and the folders. Returns its digest.

        Raises:
            OSError: if the disk refuses; the upload is then not committed.
        """
        folder = self.folder(upload)
        digest = update_digest([record.header for record in records])
        for name in sorted({record.segment for record in records}):
            _fsync(folder / f"{name}.data")
        temporary = folder / secrets.token_hex(8)
        with temporary.open("wb") as file:
            file.write(upload.upload_id.encode("ascii"))
            for record in records:
                file.write(record.segment.encode("ascii") + record.pack())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder.parent / f"{digest}.committed")
        for parent in (folder, *list(folder.parents)[:4]):
            _fsync(parent)
        return digest

    @contextlib.contextmanager
    def committed(
        self, run: str, round_number: int, attempt: int, participant: str, digest: str
    ) -> Iterator[Committed]:
        """Open a committed upload for reading; its data files are memory-mapped.

        Raises:
            NotFoundError: if it is not committed here.
            CorruptDataError: if its list of records does not match ``digest``, or a file is shorter than it says.
        """
        folder = self.round_folder(run, round_number, attempt) / participant
        upload_id, records = _read_committed(folder / f"{digest}.committed", digest)
        with contextlib.ExitStack() as stack:
            names = {record.segment for record in records}
            maps = {name: stack.enter_context(_mapped(folder / upload_id / f"{name}.data")) for name in names}
            yield Committed(folder / upload_id, records, maps)

    def flaw(self, run: str, round_number: int, attempt: int, participant: str, digest: str) -> str:
        """Why a committed upload cannot be read whole; empty if it can."""
        try:
            with self.committed(run, round_number, attempt, participant, digest) as upload:
                for record in upload.records:
                    upload.payload(record)
        except ServerError as error:
            return str(error.detail)
        return ""

    def drop_through(
        self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]
    ) -> list[tuple[int, int]]:
        """Remove every upload of a run's (round, attempt) up to ``through``, but for those in ``keep``.

        Returns the (round, attempt) that are gone for good.
        """
        gone = []
        for folder in sorted((self.root / run).glob("*.*")):
            number, _, attempt = folder.name.partition(".")
            if not (number.isdigit() and attempt.isdigit()) or (int(number), int(attempt)) > through:
                continue
            kept = {who for at_round, at_attempt, who in keep if (at_round, at_attempt) == (int(number), int(attempt))}
            for uploads in folder.iterdir():
                if uploads.name not in kept:
                    shutil.rmtree(uploads, ignore_errors=True)
            if not kept:
                shutil.rmtree(folder, ignore_errors=True)
                gone.append((int(number), int(attempt)))
        return gone

    def drop_run(self, run: str) -> None:
        """Remove every upload of a run; nothing happens if there is none."""
        shutil.rmtree(self.root / run, ignore_errors=True)

    def runs(self) -> list[str]:
        """The runs that have uploads here, for sweeping after a restart."""
        return sorted(folder.name for folder in self.root.iterdir() if folder.is_dir())


@dataclass(frozen=True)
class Committed:
    """A committed upload, open for reading."""

    folder: Path
    records: list[Record]
    maps: dict[str, memoryview]

    def payload(self, record: Record) -> memoryview:
        """The payload of a record: a view into the page cache.

        Raises:
            CorruptDataError: if the file is too short or the payload does not match its digest.
        """
        view = self.maps[record.segment][record.position : record.position + record.header.payload_bytes]
        if view.nbytes != record.header.payload_bytes or chunk_digest(view) != record.header.digest:
            raise CorruptDataError(
                "spool.corrupt",
                f"{self.folder / record.segment}.data: the chunk at byte {record.position} does not match its digest",
                "the round is tried again without this upload",
            )
        return view


def _read_committed(path: Path, digest: str) -> tuple[str, list[Record]]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError("spool.missing", f"{path}: no committed upload there") from None
    rows = raw[_UPLOAD_ID_BYTES:]
    size = _SEGMENT_NAME_BYTES + RECORD_BYTES
    records = []
    for at in range(0, len(rows) - len(rows) % size, size):
        name = rows[at : at + _SEGMENT_NAME_BYTES].decode("ascii", "replace")
        records.append(unpack_record(rows[at + _SEGMENT_NAME_BYTES : at + size], path, name))
    if update_digest([record.header for record in records]) != digest:
        raise CorruptDataError("spool.corrupt", f"{path}: its records do not make up the update that it is named after")
    return raw[:_UPLOAD_ID_BYTES].decode("ascii", "replace"), records


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    # Not closed by hand: views of it may live a little longer than this block; the last one frees it.
    yield memoryview(mapped)


def _write_all(descriptor: int, payload: memoryview) -> None:
    while payload.nbytes:
        payload = payload[os.write(descriptor, payload) :]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
