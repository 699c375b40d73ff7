"""Committed uploads of live rounds as objects in a bucket, so that another machine can sum them.

Each upload is one object, put there before its report is acknowledged and deleted with its round::

    uploads/<run>/<round>.<attempt>/<participant>/<digest>
    payloads | list of records as in ``committed`` | length of the list (u64)

A fetched object becomes the files of a committed upload in the spool: the object itself, as a segment, and its list.
"""

from __future__ import annotations

import mmap
import re
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.server.buckets.errors import ObjectMissingError
from atoll.server.disk.space import fsync_path, storage_error
from atoll.server.errors import CorruptDataError
from atoll.server.ingest.committed import (
    COMMITTED,
    LOST,
    SEGMENT_NAME_CHARS,
    UPLOAD_ID_CHARS,
    pack_committed,
    payload_in,
    read_committed,
)
from atoll.server.ingest.records import Record
from atoll.server.ingest.segment import DATA
from atoll.server.stores.blobs import BlobStore
from atoll.server.stores.bucket_blobs import UPLOADS_FOLDER as FOLDER
from atoll.server.stores.bucket_blobs import BucketBlobStore
from atoll.wire.digest import chunk_digest

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from atoll.server.buckets.bucket import Bucket

_LENGTH = struct.Struct("<Q")
_KEY = re.compile(rf"{FOLDER}/([a-z0-9-]+)/(\d+)\.(\d+)/([a-z0-9-]+)/([0-9a-f]{{64}})")
_UPLOAD_ID = re.compile(rf"[0-9a-f]{{{UPLOAD_ID_CHARS}}}")
_WHOLE_BYTES = 8 << 20
"""Smaller uploads are put in one request; larger ones are streamed in parts, which takes three or more requests."""


@dataclass(frozen=True, slots=True)
class CommittedKey:
    """Identifies a committed upload: participant, attempt at a round, and digest."""

    run: str
    round: int
    attempt: int
    participant: str
    digest: str

    @property
    def key(self) -> str:
        """The key of its object."""
        return f"{FOLDER}/{self.run}/{self.round}.{self.attempt}/{self.participant}/{self.digest}"

    @property
    def segment(self) -> str:
        """The name of its payloads as a segment."""
        return self.digest[:SEGMENT_NAME_CHARS]


def uploads_beside(blobs: BlobStore) -> BucketUploads | None:
    """The uploads in the bucket of the blobs; None if blobs are not in a bucket."""
    return BucketUploads(blobs.bucket) if isinstance(blobs, BucketBlobStore) else None


class BucketUploads:
    """The uploads in a bucket. Thread-safe; calls block, and raise StorageError if the bucket cannot be used."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def put(
        self, upload: CommittedKey, upload_id: str, records: Sequence[Record], payload: Callable[[Record], Buffer]
    ) -> None:
        """Store an upload; storing it again is no error.

        Args:
            upload: key of the upload.
            upload_id: the participant's id of the upload.
            records: its chunks.
            payload: returns the payload of a record.
        """
        placed, end = [], 0
        for record in records:
            placed.append(replace(record, segment=upload.segment, position=end))
            end += record.header.payload_bytes
        listed = pack_committed(upload_id, placed)

        def pieces() -> Iterator[Buffer]:
            for record in records:
                yield payload(record)
            yield listed + _LENGTH.pack(len(listed))

        self._bucket.put(upload.key, b"".join(pieces()) if end <= _WHOLE_BYTES else pieces())

    def fetch(self, upload: CommittedKey, folder: Path) -> bool:
        """Write an upload to its participant's folder as a committed one; False if the bucket lacks it.

        Raises:
            CorruptDataError: if it does not match the digest.
            StorageError: if bucket or disk refuses.
        """
        temporary = folder / f"{upload.participant}.{secrets.token_hex(8)}.fetched"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._download(upload, temporary)
            upload_id, listed = _checked(temporary, upload)
            (folder / upload_id).mkdir(exist_ok=True, mode=0o700)
            temporary.replace(folder / upload_id / f"{upload.segment}{DATA}")
            temporary.write_bytes(listed)
            fsync_path(temporary)
            temporary.replace(folder / f"{upload.digest}{COMMITTED}")
        except ObjectMissingError:
            return False
        except OSError as error:
            raise storage_error("storage.spool", "an update from the bucket cannot be written", error) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return True

    def listed(self, run: str = "") -> Iterator[tuple[CommittedKey, int]]:
        """The uploads of a run, or of all runs, with their sizes."""
        for found in self._bucket.listed(f"{FOLDER}/{run}" if run else FOLDER):
            parts = _KEY.fullmatch(found.key)
            if parts is not None:
                name, number, attempt, participant, digest = parts.groups()
                yield CommittedKey(name, int(number), int(attempt), participant, digest), found.size_bytes

    def drop(self, run: str, unneeded: Callable[[CommittedKey], bool]) -> None:
        """Delete the uploads of a run that are no longer needed."""
        self._bucket.delete([upload.key for upload, _ in self.listed(run) if unneeded(upload)])

    @property
    def of_others(self) -> BucketUploads:
        """The interface for a standby, which puts and fetches uploads; the active server deletes them.

        A standby's view of ended rounds may be outdated, if it was frozen or cut off meanwhile.
        """
        return _OfOthers(self._bucket)

    def _download(self, upload: CommittedKey, path: Path) -> None:
        with path.open("xb") as file:
            for piece in self._bucket.pieces(upload.key):
                file.write(piece)
            file.flush()
        path.chmod(0o600)
        fsync_path(path)


class _OfOthers(BucketUploads):
    """See ``BucketUploads.of_others``."""

    def listed(self, run: str = "") -> Iterator[tuple[CommittedKey, int]]:
        """Always empty, since the active server looks after uploads."""
        del run
        return iter(())

    def drop(self, run: str, unneeded: Callable[[CommittedKey], bool]) -> None:
        """Do nothing."""


def _checked(path: Path, upload: CommittedKey) -> tuple[str, bytes]:
    """Check a fetched object's payloads; returns the upload's id and the list of records at its end.

    Raises:
        CorruptDataError: if a payload does not match its digest, or they make up another update.
    """
    if path.stat().st_size < _LENGTH.size:
        raise _damaged(upload)
    with path.open("rb") as file:
        raw = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    (length,) = _LENGTH.unpack(raw[-_LENGTH.size :])
    end = raw.nbytes - _LENGTH.size - length
    if end < 0:
        raise _damaged(upload)
    listed = bytes(raw[end : end + length])
    upload_id, records = read_committed(listed, upload.digest, path)
    if not _UPLOAD_ID.fullmatch(upload_id):  # it becomes a folder name here
        raise _damaged(upload)
    for record in records:
        view = payload_in(raw[:end], record)
        if view is None or chunk_digest(view) != record.header.digest:
            raise _damaged(upload)
    return upload_id, listed


def _damaged(upload: CommittedKey) -> CorruptDataError:
    return CorruptDataError(
        "spool.corrupt", "an update in the bucket differs from the acknowledged one", LOST, where=upload.key
    )
