"""The spool: where uploads lie between their first chunk and the release of their round."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atoll.server.disk import Room, fsync_path, storage_error
from atoll.server.errors import CorruptDataError, InvalidRequestError, NotFoundError, ServerError, TooLateError
from atoll.server.ingest.account import Account, AccountKey, Accounts, Extents, Shares, Usage
from atoll.server.ingest.committed import (
    COMMITTED,
    SEGMENT_NAME_CHARS,
    UPLOAD_ID_CHARS,
    Committed,
    open_committed,
    pack_committed,
)
from atoll.server.ingest.records import Record, read_extent, read_index
from atoll.server.ingest.segment import DATA, INDEX, Segment
from atoll.server.ingest.verified import Verified
from atoll.server.recycling import FreeFiles
from atoll.wire.chunks import ChunkHeader, UploadKey, update_digest

log = logging.getLogger(__name__)

FREE = ".free"
_UPLOAD_ID = re.compile(rf"[0-9a-f]{{{UPLOAD_ID_CHARS}}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True)
class UploadRef:
    """One upload of one participant for one attempt of a round. Every part becomes the name of a folder.

    Raises:
        InvalidRequestError: for a part that cannot be such a name.
    """

    run: str
    round: int
    attempt: int
    participant: str
    upload_id: str

    def __post_init__(self) -> None:
        _check_name(self.run)
        _check_name(self.participant)
        if not _UPLOAD_ID.fullmatch(self.upload_id):
            raise InvalidRequestError(
                "upload.id",
                f"upload_id {self.upload_id[:40]!r}: needs {UPLOAD_ID_CHARS} hexadecimal digits",
                "name each upload with 16 random bytes in hex",
            )

    @classmethod
    def of(cls, key: UploadKey, participant: str) -> UploadRef:
        """The reference for a key as it came over the wire.

        Raises:
            InvalidRequestError: for a part that cannot be the name of a folder.
        """
        return cls(key.run, key.round, key.attempt, participant, key.upload_id)


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """So many files of so many bytes."""

    files: int
    stored_bytes: int


def refused_by_disk(error: OSError, what: str) -> ServerError:
    """What a participant is told when its update could not be written."""
    if isinstance(error, FileNotFoundError):  # the folder went while it was written to
        return TooLateError(
            "round.over", "the round is over, its uploads have been removed", "wait for the next invitation"
        )
    return storage_error("storage.spool", what, error)


class Spool:
    """All uploads under one folder; every process of the server may open it at the same time.

    Segments that this object began carry its own prefix. What others wrote is compared with its digests before it is
    relied on, once: after a power failure an index may tell of payloads that never reached the disk.
    """

    def __init__(self, root: Path, room: Room | None = None) -> None:
        self.root = root
        self._room = room
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        fsync_path(root.parent)
        self._prefix = secrets.token_hex(SEGMENT_NAME_CHARS // 4)
        self._free = FreeFiles(root / FREE, scrub=True)
        self._accounts = Accounts()
        self._verified = Verified()

    def folder(self, upload: UploadRef) -> Path:
        """Where the segments of an upload lie."""
        return self._participant_folder(upload.run, upload.round, upload.attempt, upload.participant) / upload.upload_id

    def open_segment(self, upload: UploadRef, expected_bytes: int = 0) -> Segment:
        """A new segment of an upload, for about ``expected_bytes``.

        Raises:
            OSError: if the disk refuses.
        """
        folder = self.folder(upload)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = self._prefix + secrets.token_hex(SEGMENT_NAME_CHARS // 4)
        return Segment(folder, name, self._free, expected_bytes)

    def make_room(self) -> None:
        """Give the disk back what is kept to be written over: it is full.

        Raises:
            OSError: if it refuses.
        """
        if self._room is None:
            self._free.clear()
        else:
            self._room.make_room()

    def require_room(self) -> None:
        """Refuse further uploads while the disk is nearly full.

        Raises:
            StorageFullError: if the disk has less than its reserve free.
        """
        if self._room is not None:
            self._room.require("updates")

    def account(self, upload: UploadRef) -> Account:
        """The account that the streams of this process share for the participant's uploads for that attempt.

        Raises:
            OSError: if the disk cannot be looked at.
        """
        account = self._accounts.of(_account_key(upload))
        self.recount(account, upload)
        return account

    def recount(self, account: Account, upload: UploadRef) -> None:
        """Tell an account what lies on disk. Raises as ``account``.

        All of it the first time. Later only what other processes have stored, and of that only what has grown: a
        participant that opens thousands of streams has each of its segments read once.
        """
        account.recount(self._tally(upload, account.extents, mine=not account.counted))

    def usage(self, upload: UploadRef) -> Shares:
        """What the participant's uploads for that attempt take, whatever their ids. Raises as ``account``."""
        return self._tally(upload, Extents(), mine=True)

    def _tally(self, upload: UploadRef, extents: Extents, *, mine: bool) -> Shares:
        """As ``usage``, reading of segments of other processes what ``extents`` does not know yet.

        Args:
            upload: one of the uploads.
            extents: what is known of segments of other processes; changed.
            mine: whether to look at segments of this process too.
        """
        found = Shares(Usage(), Usage())
        for path in _index_files(self.folder(upload).parent):
            if not self._wrote(path):
                found.elsewhere.add(path.parent.name, extents.of(path))
            elif mine:
                found.mine.add(path.parent.name, read_extent(path))
        return found

    def received(self, upload: UploadRef) -> list[Record]:
        """What has arrived of an upload, one record per chunk, ordered by range.

        A chunk that arrived twice (a stream broke before its answer) counts once; two different chunks for the same
        range are both listed and fail the coverage check. A chunk whose payload is not whole is left out.

        Raises:
            OSError: if the disk refuses.
        """
        chosen: dict[ChunkHeader, Record] = {}
        for path in sorted(self.folder(upload).glob(f"*{INDEX}")):
            for record in self._reliable(path):
                chosen.setdefault(record.header, record)
        return sorted(chosen.values(), key=lambda record: record.header.range)

    def commit(self, upload: UploadRef, records: Collection[Record]) -> str:
        """Make an upload durable: its segments, the list of chosen records, and the folders. Returns its digest.

        Raises:
            OSError: if the disk refuses; the upload is then not committed. Segments that could not be synced are
                removed, for the kernel may have dropped what it failed to write, and would not say so twice.
        """
        folder = self.folder(upload)
        digest = update_digest([record.header for record in records])
        for name in sorted({record.segment for record in records}):
            try:
                fsync_path(folder / f"{name}{DATA}")
            except OSError:
                _remove_files(folder / f"{name}{INDEX}", folder / f"{name}{DATA}")
                self._accounts.forget(_account_key(upload))
                raise
        _write_durably(
            folder.parent / f"{digest}{COMMITTED}",
            folder / secrets.token_hex(8),
            pack_committed(upload.upload_id, records),
        )
        for parent in (folder, *list(folder.parents)[:4]):
            fsync_path(parent)
        return digest

    @contextlib.contextmanager
    def committed(
        self, run: str, round_number: int, attempt: int, participant: str, digest: str
    ) -> Iterator[Committed]:
        """Open a committed upload for reading; its data files are memory-mapped.

        Raises:
            NotFoundError: if it is not committed here.
            CorruptDataError: if its list of records does not match ``digest``, or a data file is gone.
            StorageError: if the disk refuses or is not there: nothing is known of the upload then.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidRequestError("upload.digest", f"digest {digest[:80]!r}: needs 64 hexadecimal digits")
        folder = self._participant_folder(run, round_number, attempt, participant)
        self._check_disk()
        with open_committed(folder / f"{digest}{COMMITTED}", digest) as upload:
            yield upload

    def flaw(self, run: str, round_number: int, attempt: int, participant: str, digest: str) -> str:
        """How a committed upload is damaged; empty if it can be read whole.

        Raises:
            StorageError: if the disk refuses or is not there: nothing is known of the upload then.
        """
        try:
            with self.committed(run, round_number, attempt, participant, digest) as upload:
                for record in upload.records:
                    upload.payload(record)
        except (CorruptDataError, NotFoundError) as error:
            log.warning("an acknowledged update cannot be read: %s", error.logged, extra={"run": run})
            return str(error.detail)
        return ""

    def drop_through(
        self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]
    ) -> list[tuple[int, int]]:
        """Remove every upload of a run's (round, attempt) up to ``through``, but for those in ``keep``.

        Returns the (round, attempt) that are gone for good.
        """
        gone = []
        for folder in sorted(self._run_folder(run).glob("*.*")):
            number, _, attempt = folder.name.partition(".")
            if not (number.isdecimal() and attempt.isdecimal()) or (int(number), int(attempt)) > through:
                continue
            kept = {who for at_round, at_attempt, who in keep if (at_round, at_attempt) == (int(number), int(attempt))}
            if kept:
                self._remove(path for path in folder.iterdir() if path.name not in kept)
            else:
                self._remove([folder])
                gone.append((int(number), int(attempt)))
        return gone

    def drop_run(self, run: str) -> None:
        """Remove every upload of a run; nothing happens if there is none."""
        self._remove([self._run_folder(run)])

    def held(self, run: str) -> HeldFiles:
        """What the uploads of a run take on disk."""
        files = [path for path in self._run_folder(run).rglob("*") if path.is_file()]
        return HeldFiles(len(files), sum(map(_size_of, files)))

    def runs(self) -> list[str]:
        """The runs that have uploads here, for sweeping after a restart."""
        return sorted(folder.name for folder in self.root.iterdir() if _NAME.fullmatch(folder.name) and folder.is_dir())

    def _remove(self, folders: Iterable[Path]) -> None:
        """Remove folders whole; large files of theirs are kept for later uploads.

        What cannot be removed, or is written meanwhile, is logged and goes with the next sweep.
        """
        for folder in folders:
            for path in folder.rglob(f"*{DATA}"):
                with contextlib.suppress(OSError):  # what stays is told below
                    self._free.give(path)
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                _remove_files(folder)
            if folder.exists():
                log.warning("%s could not be removed; it is tried again when the next round ends", folder)

    def close(self) -> None:
        """Remove what is kept for later uploads; no other process may begin uploads meanwhile or afterwards."""
        self._free.close()

    def _check_disk(self) -> None:
        """Of a disk that is gone nothing may be concluded: an upload on it is not lost."""
        try:
            self.root.stat()
        except OSError as error:
            raise storage_error("storage.spool", "the stored updates cannot be reached", error) from error

    def _reliable(self, index: Path) -> list[Record]:
        """The records of a segment whose payloads are there.

        Raises:
            OSError: if the disk refuses.
        """
        try:
            records = read_index(index)
            if self._wrote(index):
                size = _size_of(index.with_suffix(DATA))
                return [record for record in records if record.position + record.header.payload_bytes <= size]
            found = self._verified.of(index.parent, index.stem, records)
        except (FileNotFoundError, ValueError) as error:
            log.warning("segment %s is left out: %s", index, error)
            return []
        if len(found) < len(records):
            log.warning("segment %s lacks %d of its %d payloads", index, len(records) - len(found), len(records))
        return found

    def _wrote(self, index: Path) -> bool:
        return index.stem.startswith(self._prefix)

    def _run_folder(self, run: str) -> Path:
        return self.root / _check_name(run)

    def _participant_folder(self, run: str, round_number: int, attempt: int, participant: str) -> Path:
        return self._run_folder(run) / f"{round_number}.{attempt}" / _check_name(participant)


def _account_key(upload: UploadRef) -> AccountKey:
    return AccountKey(upload.run, upload.round, upload.attempt, upload.participant)


def _index_files(folder: Path) -> Iterator[Path]:
    """The index files of all uploads in a participant's folder; a folder that is gone has none."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as uploads:
        for upload in uploads:
            if upload.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError), os.scandir(upload.path) as files:
                    yield from (Path(file.path) for file in files if file.name.endswith(INDEX))


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequestError("spool.name", f"{name[:80]!r} cannot name a run or participant")
    return name


def _write_durably(path: Path, temporary: Path, content: bytes) -> None:
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        _remove_files(temporary)
        raise


def _remove_files(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # the disk is failing already; what stays goes with the round
            path.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
