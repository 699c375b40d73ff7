"""One upload stream: each chunk is checked and written to a segment while the next one arrives."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future

from atoll.server.aggregation import Inspection, inspect
from atoll.server.disk.space import is_full
from atoll.server.errors import ConflictError, InvalidRequestError
from atoll.server.ingest.coordinator_api import UploadGrant
from atoll.server.ingest.segment import Segment
from atoll.server.ingest.spool import Spool
from atoll.server.ingest.spool_files import refused_by_disk
from atoll.server.ingest.upload_quota import ChunkCost, UploadQuota
from atoll.server.ingest.upload_ref import UploadRef
from atoll.wire.chunks import Chunk, ChunkHeader
from atoll.wire.encoding import payload_bytes
from atoll.wire.errors import DigestError
from atoll.wire.status import Recovery


class RejectedUpdateError(InvalidRequestError):
    """The update is unusable (not finite, or beyond the grid); the round has recorded the member as rejected."""

    recovery = Recovery.NEXT_TASK


class Receiver:
    """Writes one stream's chunks in order. Holds at most two chunks: one being written and one being received.

    Create it in a worker thread, because it reads the disk; use and close it in the event loop.

    Raises:
        ConflictError: if the participant has already reported.
        InvalidRequestError: if the round takes no updates.
        LimitExceededError: if the participant's uploads have reached a limit of streams, uploads, bytes or chunks.
    """

    def __init__(self, spool: Spool, upload: UploadRef, grant: UploadGrant, executor: Executor) -> None:
        check_wanted(grant)
        self._grant = grant
        self._executor = executor
        self._segment: Segment | None = None
        self._spool = spool
        self._upload = upload
        self._writing: Future[None] | None = None
        self._begun = False
        self.chunks = 0
        self.payload_bytes = 0
        self._quota = self._open_quota()

    async def add(self, chunk: Chunk) -> None:
        """Take the next chunk; first waits until the previous one is written.

        Raises:
            InvalidRequestError: for elements that the round does not ask for, or a chunk that does not match its
                digest.
            RejectedUpdateError: for a value that is not finite or beyond the grid.
            LimitExceededError: if the participant's uploads exceed the grant.
            StorageError: if the disk refuses.
            TooLateError: if the round's uploads have been removed.
        """
        await self.finish()
        charged = self._charge(chunk.header)
        self._writing = self._executor.submit(self._write, chunk, charged)
        self._writing.add_done_callback(
            lambda done: self._quota.refund(charged, stream=True) if done.cancelled() else None
        )
        self.chunks += 1
        self.payload_bytes += chunk.header.payload_bytes

    def take(self, chunk: Chunk) -> None:
        """``add`` for worker threads: returns when the chunk is written. Raises what ``add`` raises."""
        self._write(chunk, self._charge(chunk.header))
        self.chunks += 1
        self.payload_bytes += chunk.header.payload_bytes

    def close(self) -> None:
        """Close the files once the current write has ended, without waiting for it."""
        writing, self._writing = self._writing, None
        if writing is None or writing.cancel():
            self._close_segment()
        else:
            writing.add_done_callback(lambda _: self._close_segment())

    async def finish(self) -> None:
        """Wait for the current write; may be called again after a cancellation. Raises what ``add`` raises."""
        if self._writing is not None:
            await asyncio.wrap_future(self._writing)
            self._writing = None

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def _charge(self, header: ChunkHeader) -> ChunkCost:
        check_range(header, self._grant)
        charge = ChunkCost(header.payload_bytes, None if self._begun else self._upload.upload_id)
        self._quota.charge(charge, self._grant)
        self._begun = True
        return charge

    def _write(self, chunk: Chunk, charged: ChunkCost) -> None:
        try:
            self._store(chunk)
        except BaseException:
            self._refund(charged)
            raise
        if self._quota.take_recount():
            self._recount()

    def _refund(self, charged: ChunkCost) -> None:
        """Refund a chunk that was not stored; once there is a segment, its stream stays charged."""
        self._quota.refund(charged, stream=self._segment is None)

    def _store(self, chunk: Chunk) -> None:
        seen = measured(chunk, self._grant)
        try:
            if self._segment is None:
                encoding = chunk.header.encoding
                self._segment = self._spool.open_segment(self._upload, payload_bytes(encoding, self._grant.elements))
            self._segment.append(chunk.header, chunk.payload, seen.max_abs, seen.sum_squares)
        except OSError as error:
            if is_full(error):
                self._spool.make_room()
            raise refused_by_disk(error, "the chunk could not be stored") from error

    def _open_quota(self) -> UploadQuota:
        """Open the quota that this stream shares with its siblings; raises if it allows no further stream."""
        self._spool.require_room()
        try:
            quota = self._spool.quota(self._upload)
        except OSError as error:
            raise refused_by_disk(error, "the chunk could not be stored") from error
        quota.check_stream(self._upload.upload_id, self._grant)
        return quota

    def _recount(self) -> None:
        self._spool.require_room()
        try:
            self._spool.recount(self._quota, self._upload)
        except OSError as error:
            raise refused_by_disk(error, "the chunk could not be stored") from error


def check_wanted(grant: UploadGrant) -> None:
    """Check that the round wants an update from this participant.

    Raises:
        ConflictError: if the participant has already reported.
        InvalidRequestError: if the round takes no updates.
    """
    if grant.receipt is not None:
        raise ConflictError(
            "upload.reported",
            "this participant has reported for the round already",
            "wait for the next invitation",
            recovery=Recovery.NEXT_TASK,
        )
    if not grant.max_bytes:
        raise InvalidRequestError(
            "upload.unwanted", "this round asks for metrics, not for an update", "report without an upload"
        )


def check_range(header: ChunkHeader, grant: UploadGrant) -> None:
    """Check that the round asks for the chunk's elements.

    Raises:
        InvalidRequestError: if it does not.
    """
    span, first, end = header.range, grant.first, grant.first + grant.elements
    if span.offset < first or span.stop > end:
        raise InvalidRequestError(
            "upload.range",
            f"a chunk names elements {span.offset} to {span.stop - 1}; this round asks for {first} to {end - 1}",
            "send the elements that the invitation asks for, cut from its layout",
        )


def measured(chunk: Chunk, grant: UploadGrant) -> Inspection:
    """Check a chunk against its digest and measure its values.

    Raises:
        InvalidRequestError: if it does not match its digest.
        RejectedUpdateError: for a value that is not finite or beyond the grid.
    """
    try:
        chunk.verify()
    except DigestError as error:
        raise InvalidRequestError("upload.digest", str(error), "send the chunk again") from None
    seen, first = inspect(chunk.payload, chunk.header.encoding, chunk.header.range.size), chunk.header.range.offset
    if not seen.finite:
        raise RejectedUpdateError(
            "update.not_finite",
            f"the update has a value that is not finite in the chunk at element {first}",
            "lower the learning rate or clip gradients",
        )
    if seen.max_abs > grant.max_abs:
        raise RejectedUpdateError(
            "update.out_of_range",
            f"the update has magnitude {seen.max_abs:g} in the chunk at element {first}, allowed is {grant.max_abs:g}",
            "lower the learning rate, or raise aggregation.max_abs in the job",
        )
    return seen
