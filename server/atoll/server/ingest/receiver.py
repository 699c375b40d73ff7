"""One upload stream: every chunk is checked, measured and written to a segment while the next one arrives."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future

from atoll.server.aggregation import inspect
from atoll.server.disk import is_full
from atoll.server.errors import ConflictError, InvalidRequestError, LimitExceededError
from atoll.server.ingest.desk import UploadGrant
from atoll.server.ingest.segment import Segment
from atoll.server.ingest.spool import Spool, UploadRef, refused_by_disk
from atoll.wire.chunks import Chunk, ChunkHeader
from atoll.wire.errors import DigestError

MAX_SEGMENTS = 4096
"""Streams that may feed the uploads of one participant for one attempt, one after another and together."""
CHUNKS_FLOOR = 1 << 16
MEAN_CHUNK_BYTES = 1 << 16
"""The uploads of one participant for one attempt may have ``CHUNKS_FLOOR`` chunks and one more per so many bytes."""
RECOUNT_BYTES = 64 << 20
"""A stream looks again at what its siblings (in any process) have stored after so many bytes of its own."""


class RejectedUpdateError(InvalidRequestError):
    """The update itself cannot be used (not finite, or beyond the grid): sending it again will not help."""


class Receiver:
    """Writes one stream's chunks in order. Holds at most two chunks: one being written, one being received.

    Make it in a worker thread, for it looks at the disk; use and close it in the event loop.

    Raises:
        ConflictError: if the participant has reported already.
        InvalidRequestError: if the round takes no updates.
        LimitExceededError: if the participant's streams have left too many segments.
    """

    def __init__(self, spool: Spool, upload: UploadRef, grant: UploadGrant, executor: Executor) -> None:
        _check_wanted(grant)
        self._grant = grant
        self._executor = executor
        self._segment: Segment | None = None
        self._spool = spool
        self._upload = upload
        self._writing: Future[None] | None = None
        self._uncounted_bytes = 0
        self.chunks = 0
        self.payload_bytes = 0
        self._count_stored()

    async def add(self, chunk: Chunk) -> None:
        """Take the next chunk; waits until the one before it is written.

        Raises:
            InvalidRequestError: for a chunk beyond the layout, or one that does not match its digest.
            RejectedUpdateError: for a value that is not finite or beyond the grid.
            LimitExceededError: if the participant's uploads grow beyond what was granted.
            StorageError: if the disk refuses.
            TooLateError: if the round's uploads have been removed.
        """
        await self._settle()
        self._check_room(chunk.header)
        self._writing = self._executor.submit(self._write, chunk)
        self.chunks += 1
        self.payload_bytes += chunk.header.payload_bytes

    def take(self, chunk: Chunk) -> None:
        """As ``add``, for a caller in a worker thread: returns when the chunk is written. Raises as ``add``."""
        self._check_room(chunk.header)
        self._write(chunk)
        self.chunks += 1
        self.payload_bytes += chunk.header.payload_bytes

    async def finish(self) -> None:
        """Wait for the last write. Raises as ``add``."""
        await self._settle()

    def close(self) -> None:
        """Close the files, as soon as a write that is under way has ended; does not wait for it."""
        writing, self._writing = self._writing, None
        if writing is None or writing.cancel():
            self._close_segment()
        else:
            writing.add_done_callback(lambda _: self._close_segment())

    async def _settle(self) -> None:
        """Wait for the write under way. It stays known until it has ended, so that a cancelled stream's can too."""
        if self._writing is not None:
            await asyncio.wrap_future(self._writing)
            self._writing = None

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def _check_room(self, header: ChunkHeader) -> None:
        grant = self._grant
        if header.range.stop > grant.elements:
            raise InvalidRequestError(
                "upload.range",
                f"a chunk reaches element {header.range.stop - 1}; the layout ends at {grant.elements - 1}",
                "cut the chunks from the round's layout",
            )
        self._stored_bytes += header.payload_bytes
        self._stored_chunks += 1
        if self._stored_bytes > grant.max_bytes:
            raise LimitExceededError(
                "upload.bytes",
                f"this participant's uploads for the round would hold over {grant.max_bytes} bytes",
                "ask for the upload's status and send only what is missing",
            )
        most = CHUNKS_FLOOR + grant.max_bytes // MEAN_CHUNK_BYTES
        if self._stored_chunks > most:
            raise LimitExceededError(
                "upload.chunks",
                f"this participant's uploads for the round would have over {most} chunks",
                "send larger chunks, as the welcome asks",
            )

    def _write(self, chunk: Chunk) -> None:
        try:
            chunk.verify()
        except DigestError as error:
            raise InvalidRequestError("upload.digest", str(error), "send the chunk again") from None
        seen = inspect(chunk.payload, chunk.header.encoding)
        self._check_values(chunk, finite=seen.finite, max_abs=seen.max_abs)
        try:
            if self._segment is None:
                self._segment = self._spool.open_segment(
                    self._upload, chunk.header.encoding.itemsize * self._grant.elements
                )
            self._segment.append(chunk.header, chunk.payload, seen.max_abs, seen.sum_squares)
        except OSError as error:
            if is_full(error):
                self._spool.make_room()
            raise refused_by_disk(error, "the chunk could not be stored") from error
        self._uncounted_bytes += chunk.header.payload_bytes
        if self._uncounted_bytes >= RECOUNT_BYTES:
            self._count_stored()

    def _count_stored(self) -> None:
        """What the participant's uploads take on disk, this stream's writes included."""
        self._spool.require_room()
        try:
            usage = self._spool.usage(self._upload)
        except OSError as error:
            raise refused_by_disk(error, "the chunk could not be stored") from error
        if usage.segments >= MAX_SEGMENTS:
            raise LimitExceededError(
                "upload.streams",
                f"{usage.segments} streams have fed this participant's uploads for the round",
                "send more chunks per stream",
            )
        if usage.others >= self._grant.max_uploads:
            raise LimitExceededError(
                "upload.unfinished",
                f"this participant has begun {usage.others} other uploads for the round",
                "go on with one of them: ask for its status and send what is missing",
            )
        self._stored_bytes, self._stored_chunks = usage.payload_bytes, usage.chunks
        self._uncounted_bytes = 0

    def _check_values(self, chunk: Chunk, *, finite: bool, max_abs: float) -> None:
        first = chunk.header.range.offset
        if not finite:
            raise RejectedUpdateError(
                "update.not_finite",
                f"the update has a value that is not finite in the chunk at element {first}",
                "lower the learning rate or clip gradients",
            )
        if max_abs > self._grant.max_abs:
            raise RejectedUpdateError(
                "update.out_of_range",
                f"the update has magnitude {max_abs:g} in the chunk at element {first}, "
                f"allowed is {self._grant.max_abs:g}",
                "lower the learning rate, or raise aggregation.max_abs in the job",
            )


def _check_wanted(grant: UploadGrant) -> None:
    if grant.receipt is not None:
        raise ConflictError(
            "upload.reported", "this participant has reported for the round already", "wait for the next invitation"
        )
    if not grant.max_bytes:
        raise InvalidRequestError(
            "upload.unwanted", "this round asks for metrics, not for an update", "report without an upload"
        )
