"""Commits an upload: checks it and makes it durable before the coordinator is asked to count it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.server.disk.space import is_full
from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.errors import InvalidRequestError, LimitExceededError
from atoll.server.ingest.coordinator_api import UploadGrant
from atoll.server.ingest.receiver import check_range, check_wanted, measured
from atoll.server.ingest.records import RECORD_BYTES, Record, norm_of
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.spool_files import refused_by_disk
from atoll.server.ingest.upload_ref import UploadRef
from atoll.wire.chunks import MAX_BLOCKS, Chunk, ChunkHeader, check_coverage, update_digest
from atoll.wire.errors import CoverageError


@dataclass(frozen=True, slots=True)
class DurableUpload:
    """A committed upload: its digest, payload bytes and Euclidean norm."""

    digest: str
    payload_bytes: int
    norm: float


def commit_upload(spool: Spool, upload: UploadRef, elements: int, digest: str, first: int = 0) -> DurableUpload:
    """Check that an upload is complete and matches its report, then fsync it. Blocks: call it from a worker thread.

    Args:
        spool: the spool with the upload.
        upload: the upload.
        elements: number of elements that the round asks for; the chunks must cover [first, first + elements) exactly
            once.
        digest: hex digest that the participant reported.
        first: the first element that the round asks for.

    Raises:
        InvalidRequestError: if chunks are missing or overlap, or the digest differs.
        LimitExceededError: if the chunks are too scattered.
        StorageError: if the disk refuses.
        TooLateError: if the round's uploads have been removed.
    """
    try:
        records = spool.received(upload)
        _check_reported([record.header for record in records], elements, digest, first)
        spool.commit(upload, records)
    except OSError as error:
        if is_full(error):
            spool.make_room()
        raise refused_by_disk(error, "the update could not be made durable") from error
    return DurableUpload(digest, sum(record.header.payload_bytes for record in records), norm_of(records))


def commit_small_update(
    spool: Spool, upload: UploadRef, grant: UploadGrant, digest: str, chunk: Chunk
) -> DurableUpload:
    """Receive and commit an upload of one chunk. Blocks; call it from a thread.

    Raises:
        RejectedUpdateError: for a value that is not finite or beyond the grid.
        ServerError: what ``Receiver`` and ``commit_upload`` raise.
    """
    check_wanted(grant)
    check_range(chunk.header, grant)
    seen = measured(chunk, grant)
    _check_reported([chunk.header], grant.elements, digest, grant.first)
    spool.require_room()
    checksum = stored_checksum(chunk.payload)
    record = Record(chunk.header, "", RECORD_BYTES, seen.max_abs, seen.sum_squares, checksum)
    try:
        spool.keep_small_update(upload, record, chunk.payload)
    except OSError as error:
        if is_full(error):
            spool.make_room()
        raise refused_by_disk(error, "the update could not be made durable") from error
    return DurableUpload(digest, chunk.header.payload_bytes, norm_of([record]))


def _check_reported(headers: Sequence[ChunkHeader], elements: int, digest: str, first: int) -> None:
    """Check that chunks make up the reported update; arguments as for ``commit_upload``.

    Raises:
        InvalidRequestError: if chunks are missing or overlap, or the digest differs.
        LimitExceededError: if the chunks are too scattered.
    """
    _check_whole(headers, elements, first)
    found = update_digest(headers)
    if found != digest:
        raise InvalidRequestError(
            "upload.digest",
            f"the upload's digest is {found[:16]}..., reported was {digest[:16]!r}",
            "start a new upload under a new upload_id",
        )


def _check_whole(headers: Sequence[ChunkHeader], elements: int, first: int) -> None:
    blocks = sum(1 if header.range.contiguous else header.range.count for header in headers)
    if blocks > MAX_BLOCKS:
        raise LimitExceededError(
            "upload.blocks",
            f"the upload's chunks name {blocks} runs of elements, at most {MAX_BLOCKS}",
            "cut larger runs",
        )
    try:
        check_coverage((header.range for header in headers), elements, first)
    except CoverageError as error:
        raise InvalidRequestError(
            "upload.incomplete",
            f"the chunks do not make up the update: {error}",
            "ask for the upload's status, send what is missing, report again; chunks that overlap need a new upload_id",
        ) from None
