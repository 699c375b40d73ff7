"""A small update that comes whole, with its report: stored and made durable in one go."""

from __future__ import annotations

from concurrent.futures import Executor

from atoll.server.ingest.commit import DurableUpload, commit_upload
from atoll.server.ingest.desk import UploadGrant
from atoll.server.ingest.receiver import Receiver
from atoll.server.ingest.spool import Spool, UploadRef
from atoll.wire.chunks import Chunk


def commit_whole(
    spool: Spool, upload: UploadRef, grant: UploadGrant, digest: str, chunk: Chunk, executor: Executor
) -> DurableUpload:
    """Take an upload of one chunk and commit it: in the spool it is like any other. Blocks; call it from a thread.

    Raises:
        RejectedUpdateError: for a value that is not finite or beyond the grid.
        ServerError: as ``Receiver`` and ``commit_upload`` raise them.
    """
    receiver = Receiver(spool, upload, grant, executor)
    try:
        receiver.take(chunk)
    finally:
        receiver.close()
    return commit_upload(spool, upload, grant.elements, digest, grant.first)
