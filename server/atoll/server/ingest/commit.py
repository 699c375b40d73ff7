"""Making an upload whole and durable, before the coordinator is asked to count it."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.server.errors import InvalidRequestError, StorageError
from atoll.server.ingest.records import norm_of
from atoll.server.ingest.spool import Spool, UploadRef
from atoll.wire.chunks import check_coverage, update_digest
from atoll.wire.errors import CoverageError


@dataclass(frozen=True, slots=True)
class DurableUpload:
    """A committed upload: its digest, payload bytes and Euclidean norm."""

    digest: str
    payload_bytes: int
    norm: float


def commit_upload(spool: Spool, upload: UploadRef, elements: int, digest: str) -> DurableUpload:
    """Check that an upload is whole and the one that was reported, then fsync it. Blocks; call it from a worker thread.

    Args:
        spool: where it lies.
        upload: which one.
        elements: N of the layout; the chunks must cover [0, N) exactly once.
        digest: hex digest that the participant reported.

    Raises:
        InvalidRequestError: if chunks are missing or overlap, or the digest is another.
        StorageError: if the disk refuses.
    """
    records = spool.received(upload)
    try:
        check_coverage((record.header.range for record in records), elements)
    except CoverageError as error:
        raise InvalidRequestError(
            "upload.incomplete", str(error), "ask for the upload's status, send what is missing, report again"
        ) from None
    found = update_digest([record.header for record in records])
    if found != digest:
        raise InvalidRequestError(
            "upload.digest",
            f"the upload's digest is {found[:16]}..., reported was {digest[:16]}...",
            "start a new upload under a new upload_id",
        )
    try:
        spool.commit(upload, records)
    except OSError as error:
        raise StorageError(
            "storage.spool",
            f"the update could not be made durable: {error.strerror}",
            "report again",
            retry_after_s=5.0,
        ) from error
    return DurableUpload(found, sum(record.header.payload_bytes for record in records), norm_of(records))
