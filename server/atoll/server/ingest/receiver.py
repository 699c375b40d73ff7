"""One upload stream: every chunk is checked, measured and written to a segment while the next one arrives."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from atoll.server.aggregation import inspect
from atoll.server.errors import InvalidRequestError, LimitExceededError, StorageError
from atoll.server.ingest.desk import UploadGrant
from atoll.server.ingest.spool import Segment, Spool, UploadRef
from atoll.wire.chunks import Chunk
from atoll.wire.errors import DigestError


class RejectedUpdateError(InvalidRequestError):
    """The update itself cannot be used (not finite, or beyond the grid): sending it again will not help."""


class Receiver:
    """Writes one stream's chunks in order. Holds at most two chunks: one being written, one being received."""

    def __init__(self, spool: Spool, upload: UploadRef, grant: UploadGrant, executor: Executor) -> None:
        self._grant = grant
        self._executor = executor
        self._segment: Segment | None = None
        self._spool = spool
        self._upload = upload
        self._held = sum(record.header.payload_bytes for record in spool.received(upload))
        self._pending: asyncio.Future[None] | None = None
        self.chunks = 0
        self.payload_bytes = 0

    async def add(self, chunk: Chunk) -> None:
        """Take the next chunk; waits until the one before it is written.

        Raises:
            InvalidRequestError: for a chunk beyond the layout, or one that does not match its digest.
            RejectedUpdateError: for a value that is not finite or beyond the grid.
            LimitExceededError: if the upload grows beyond what was granted.
            StorageError: if the disk refuses.
        """
        header = chunk.header
        if header.range.stop > self._grant.elements:
            raise InvalidRequestError(
                "upload.range",
                f"a chunk reaches element {header.range.stop - 1}; the layout ends at {self._grant.elements - 1}",
            )
        if self._held + self.payload_bytes + header.payload_bytes > self._grant.max_bytes:
            raise LimitExceededError(
                "upload.bytes",
                f"the upload would hold over {self._grant.max_bytes} bytes",
                "ask for the upload's status and send only what is missing",
            )
        await self._settle()
        loop = asyncio.get_running_loop()
        self._pending = loop.run_in_executor(self._executor, self._write, chunk)
        self.chunks += 1
        self.payload_bytes += header.payload_bytes

    async def close(self) -> None:
        """Wait for the last write and close the files, also after an error."""
        try:
            await self._settle()
        finally:
            if self._segment is not None:
                self._segment.close()
                self._segment = None

    async def _settle(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            await pending

    def _write(self, chunk: Chunk) -> None:
        try:
            chunk.verify()
        except DigestError as error:
            raise InvalidRequestError("upload.digest", str(error), "send the chunk again") from None
        seen = inspect(chunk.payload, chunk.header.encoding)
        self._check(chunk, finite=seen.finite, max_abs=seen.max_abs)
        try:
            if self._segment is None:
                self._segment = self._spool.open_segment(self._upload)
            self._segment.append(chunk.header, chunk.payload, seen.max_abs, seen.sum_squares)
        except OSError as error:
            raise StorageError(
                "storage.spool",
                f"the chunk could not be stored: {error.strerror}",
                "try again later",
                retry_after_s=5.0,
            ) from error

    def _check(self, chunk: Chunk, *, finite: bool, max_abs: float) -> None:
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
