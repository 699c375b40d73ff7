"""The spool: uploads on disk, from their first chunk to the release of their round."""

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

from atoll.server.disk.recycling import FreeFiles
from atoll.server.disk.space import Room, fsync_path, storage_error
from atoll.server.errors import CorruptDataError, InvalidRequestError, NotFoundError
from atoll.server.ingest.bucket_uploads import BucketUploads, CommittedKey
from atoll.server.ingest.committed import (
    COMMITTED,
    SEGMENT_NAME_CHARS,
    Committed,
    open_committed,
    pack_committed,
)
from atoll.server.ingest.folder_syncs import FolderSyncs
from atoll.server.ingest.records import Record, read_extent, read_index
from atoll.server.ingest.segment import DATA, INDEX, Segment
from atoll.server.ingest.small_update_files import (
    MOST_FILES,
    KeptSmallUpdates,
    whole_path,
    write_small_update,
)
from atoll.server.ingest.spool_files import (
    index_files,
    participant_of,
    remove_files,
    size_of,
    small_update_of,
    write_durably,
)
from atoll.server.ingest.upload_quota import Extents, Shares, UploadQuota, UploadQuotas, Usage
from atoll.server.ingest.upload_ref import UploadRef, check_name, is_name
from atoll.server.ingest.verified import Verified
from atoll.wire.chunks import ChunkHeader, update_digest

log = logging.getLogger(__name__)

FREE = ".free"
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """A number of files and their total size."""

    files: int
    stored_bytes: int


class Spool:
    """All uploads under one folder, which all processes of the server may open concurrently.

    Segments that this object began have its own prefix. Other segments are compared with their digests once before they
    are used, since after a power failure an index may refer to payloads that never reached the disk.

    Args:
        root: the folder.
        room: the disk's free-space check.
        bucket: also has committed uploads, for other machines; missing uploads are fetched from it. None if there is
            only the folder.
    """

    def __init__(self, root: Path, room: Room | None = None, bucket: BucketUploads | None = None) -> None:
        self.root = root
        self.bucket = bucket
        self._room = room
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        fsync_path(root.parent)
        self._prefix = secrets.token_hex(SEGMENT_NAME_CHARS // 4)
        self._free = FreeFiles(root / FREE, scrub=True)
        self._quotas = UploadQuotas()
        self._verified = Verified()
        self._syncs = FolderSyncs()
        self._kept = KeptSmallUpdates()

    def folder(self, upload: UploadRef) -> Path:
        """The folder of an upload's segments."""
        attempt = self._attempt_folder(upload.run, upload.round, upload.attempt)
        return attempt / upload.participant / upload.upload_id

    def open_segment(self, upload: UploadRef, expected_bytes: int = 0) -> Segment:
        """Begin a segment of an upload, with room for about ``expected_bytes``.

        Raises:
            OSError: if the disk refuses.
        """
        folder = self.folder(upload)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = self._prefix + secrets.token_hex(SEGMENT_NAME_CHARS // 4)
        return Segment(folder, name, self._free, expected_bytes)

    def make_room(self) -> None:
        """Delete the files kept for overwriting, because the disk is full.

        Raises:
            OSError: if the disk refuses.
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

    def quota(self, upload: UploadRef) -> UploadQuota:
        """The participant's quota for the attempt, shared by the streams of this process.

        Raises:
            OSError: if the disk cannot be read.
        """
        quota = self._quotas.of(upload.quota_key)
        self.recount(quota, upload)
        return quota

    def recount(self, quota: UploadQuota, upload: UploadRef) -> None:
        """Update a quota from disk. Raises what ``quota`` raises.

        The first time everything is counted. Later only growing segments of other processes are read, so that each
        segment is read once even if a participant opens thousands of streams.
        """
        quota.recount(self._tally(upload, quota.extents, mine=not quota.counted))

    def usage(self, upload: UploadRef) -> Shares:
        """The usage of all the participant's uploads for the attempt. Raises what ``quota`` raises."""
        return self._tally(upload, Extents(), mine=True)

    def _tally(self, upload: UploadRef, extents: Extents, *, mine: bool) -> Shares:
        """Like ``usage``, but reads only those parts of other processes' segments that ``extents`` does not have.

        Args:
            upload: one of the uploads.
            extents: known sizes of other processes' segments; updated here.
            mine: whether to include segments of this process.
        """
        found = Shares(Usage(), Usage())
        for path in index_files(self.folder(upload).parent):
            if not self._wrote(path):
                found.elsewhere.add(path.parent.name, extents.of(path))
            elif mine:
                found.mine.add(path.parent.name, read_extent(path))
        return found

    def received(self, upload: UploadRef) -> list[Record]:
        """The received chunks of an upload, as records ordered by range.

        A chunk that arrived twice (a stream broke before its answer) counts once. Two different chunks for the same
        range are both listed and fail the coverage check. A chunk with an incomplete payload is left out.

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
            OSError: if the disk refuses; then the upload is not committed. Segments that could not be synced are
                removed, since the kernel may have dropped data that it failed to write, and reports this only once.
        """
        folder = self.folder(upload)
        digest = update_digest([record.header for record in records])
        for name in sorted({record.segment for record in records}):
            try:
                fsync_path(folder / f"{name}{DATA}")
            except OSError:
                remove_files(folder / f"{name}{INDEX}", folder / f"{name}{DATA}")
                self._quotas.forget(upload.quota_key)
                raise
        write_durably(
            folder.parent / f"{digest}{COMMITTED}",
            folder / secrets.token_hex(8),
            pack_committed(upload.upload_id, records),
        )
        for parent in (folder, *list(folder.parents)[:4]):
            fsync_path(parent)
        if self.bucket is not None:
            with open_committed(folder.parent / f"{digest}{COMMITTED}", digest) as found:
                self.bucket.put(upload.committed_key(digest), upload.upload_id, found.records, found.payload)
        return digest

    def keep_small_update(self, upload: UploadRef, record: Record, payload: memoryview) -> None:
        """Store an update of one chunk durably; its upload is then committed.

        Args:
            upload: the update's upload.
            record: record of its chunk, at position ``RECORD_BYTES``.
            payload: payload of its chunk.

        Raises:
            LimitExceededError: if the participant has sent too many different updates for the attempt.
            OSError: if the disk refuses; the update is then not stored.
        """
        folder = self._attempt_folder(upload.run, upload.round, upload.attempt)
        if self._kept.has(folder, upload.participant, record, payload):
            return
        path = write_small_update(folder, upload.participant, record, payload, self._syncs.before_making)
        self._syncs.request(folder, parents=2).finish()
        if self.bucket is not None:
            key = upload.committed_key(update_digest([record.header]))
            self.bucket.put(key, upload.upload_id, [record], lambda _: payload)
        self._kept.add(folder, upload.participant, record, path)

    @contextlib.contextmanager
    def committed(
        self, run: str, round_number: int, attempt: int, participant: str, digest: str
    ) -> Iterator[Committed]:
        """Open a committed upload for reading; its data files are memory-mapped.

        Raises:
            NotFoundError: if it is not committed here.
            CorruptDataError: if its list of records does not match ``digest``, or a data file is missing.
            StorageError: if the disk refuses or is missing; the upload may then be intact.
        """
        if not _DIGEST.fullmatch(digest):
            raise InvalidRequestError("upload.digest", f"digest {digest[:80]!r}: needs 64 hexadecimal digits")
        folder = self._attempt_folder(run, round_number, attempt)
        path = folder / check_name(participant) / f"{digest}{COMMITTED}"
        whole = None if os.path.exists(path) else small_update_of(folder, participant, digest)  # noqa: PTH110 - never raises
        if whole is not None:
            yield whole
            return
        self._check_disk()
        if self.bucket is not None and not os.path.exists(path):  # noqa: PTH110 - never raises
            self.bucket.fetch(CommittedKey(run, round_number, attempt, participant, digest), path.parent)
        with open_committed(path, digest) as upload:
            yield upload

    def flaw(self, run: str, round_number: int, attempt: int, participant: str, digest: str) -> str:
        """The flaw of a damaged committed upload; empty if it is intact.

        Raises:
            StorageError: if the disk refuses or is missing; the upload may then be intact.
        """
        key = CommittedKey(run, round_number, attempt, participant, digest)
        found = self._flaw(key)
        if found and self.bucket is not None:
            self._forget(key)
            found = self._flaw(key)
        return found

    def _flaw(self, key: CommittedKey) -> str:
        try:
            with self.committed(key.run, key.round, key.attempt, key.participant, key.digest) as upload:
                for record in upload.records:
                    upload.payload(record)
        except (CorruptDataError, NotFoundError) as error:
            # the file's name includes the participant's, which must not be in the log of a secret draw
            log.warning("an acknowledged update cannot be read: %s", error.detail.code, extra={"run": key.run})
            log.debug("%s", error.logged, extra={"run": key.run})
            return str(error.detail)
        return ""

    def _forget(self, key: CommittedKey) -> None:
        """Delete a local copy, so that it is fetched from the bucket; if small, the participant's other copies too."""
        folder = self._attempt_folder(key.run, key.round, key.attempt)
        remove_files(folder / key.participant / f"{key.digest}{COMMITTED}")
        remove_files(*(whole_path(folder, key.participant, number) for number in range(MOST_FILES)))

    def drop_through(
        self, run: str, through: tuple[int, int], keep: Collection[tuple[int, int, str]]
    ) -> list[tuple[int, int]]:
        """Remove every upload of a run's attempts up to ``through``, except those in ``keep``.

        Returns the (round, attempt) pairs that were removed completely.
        """
        gone = []
        for at, folder in sorted(self._attempts(run)):
            if at > through:
                continue
            kept = {who for at_round, at_attempt, who in keep if (at_round, at_attempt) == at}
            if kept:
                self._remove(path for path in folder.iterdir() if participant_of(path) not in kept)
            else:
                self._remove([folder])
                gone.append(at)
        if self.bucket is not None:
            self.bucket.drop(
                run,
                lambda key: (
                    (key.round, key.attempt) <= through and (key.round, key.attempt, key.participant) not in keep
                ),
            )
        return gone

    def drop_run(self, run: str) -> None:
        """Remove all uploads of a run, if there are any."""
        self._remove([self._run_folder(run)])
        if self.bucket is not None:
            self.bucket.drop(run, lambda _: True)

    def held(self, run: str) -> HeldFiles:
        """Disk usage of a run's uploads."""
        files = [path for path in self._run_folder(run).rglob("*") if path.is_file()]
        return HeldFiles(len(files), sum(map(size_of, files)))

    def runs(self) -> list[str]:
        """The runs with uploads here or in the bucket, for the sweep after a restart."""
        found = set(self.runs_here())
        if self.bucket is not None:
            found |= {key.run for key, _ in self.bucket.listed()}
        return sorted(found)

    def runs_here(self) -> list[str]:
        """The runs that have uploads in this folder."""
        return sorted(folder.name for folder in self.root.iterdir() if is_name(folder.name) and folder.is_dir())

    def newest_attempts(self) -> dict[str, tuple[int, int] | None]:
        """(round, attempt) of the newest uploads in this folder, by run; None: all its uploads have been removed."""
        return {run: max((at for at, _ in self._attempts(run)), default=None) for run in self.runs_here()}

    def forget_run(self, run: str) -> None:
        """Remove the folder of a run that has ended, unless it has uploads."""
        with contextlib.suppress(OSError):  # it has uploads, or the disk refuses: the next call tries again
            self._run_folder(run).rmdir()

    def _attempts(self, run: str) -> Iterator[tuple[tuple[int, int], Path]]:
        """The (round, attempt) pairs of a run that have a folder, each with this folder."""
        for folder in self._run_folder(run).glob("*.*"):
            number, _, attempt = folder.name.partition(".")
            if number.isdecimal() and attempt.isdecimal():
                yield (int(number), int(attempt)), folder

    def _remove(self, folders: Iterable[Path]) -> None:
        """Remove folders; keep their large files for later uploads to overwrite.

        Files that cannot be removed, or that are being written, are logged and removed by the next sweep.
        """
        for folder in folders:
            for path in folder.rglob(f"*{DATA}"):
                with contextlib.suppress(OSError):  # what remains is logged below
                    self._free.give(path)
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                remove_files(folder)
            if folder.exists():
                log.warning("%s could not be removed; it is tried again when the next round ends", folder)

    def close(self) -> None:
        """Remove the files kept for later uploads; no process may begin uploads from now on."""
        self._free.close()

    def _check_disk(self) -> None:
        """Raise if the disk is missing: its uploads are then unreachable, but not lost."""
        try:
            self.root.stat()
        except OSError as error:
            raise storage_error("storage.spool", "the stored updates cannot be reached", error) from error

    def _reliable(self, index: Path) -> list[Record]:
        """Those records of a segment whose payloads are on disk.

        Raises:
            OSError: if the disk refuses.
        """
        try:
            records = read_index(index)
            if self._wrote(index):
                size = size_of(index.with_suffix(DATA))
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
        return self.root / check_name(run)

    def _attempt_folder(self, run: str, round_number: int, attempt: int) -> Path:
        return self._run_folder(run) / f"{round_number}.{attempt}"
