"""Commits small updates that arrive within their report: checked, stored and made durable with one fsync."""

from __future__ import annotations

from atoll.server.disk.space import is_full
from atoll.server.disk.stored_checksum import stored_checksum
from atoll.server.ingest.commit import DurableUpload, check_reported
from atoll.server.ingest.coordinator_api import UploadGrant
from atoll.server.ingest.receiver import check_range, check_wanted, measured
from atoll.server.ingest.records import RECORD_BYTES, Record, norm_of
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.spool_files import refused_by_disk
from atoll.server.ingest.upload_ref import UploadRef
from atoll.wire.chunks import Chunk


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
    check_reported([chunk.header], grant.elements, digest, grant.first)
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
