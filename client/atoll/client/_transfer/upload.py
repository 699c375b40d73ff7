"""The state of one upload: its chunks, which were sent, and which the server holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from atoll.client._transfer.elements import cut_ranges
from atoll.wire.chunks import ChunkHeader, ElementRange, frame_upload, header_of, update_digest
from atoll.wire.digest import INLINE_BYTES
from atoll.wire.encoding import most_elements, payload_bytes, stored_items

if TYPE_CHECKING:
    from atoll.client._transfer.elements import Shard
    from atoll.wire.chunks import Held, UploadKey
    from atoll.wire.encoding import Encoding


class Upload:
    """Cuts a shard into chunks and frames them, one at a time; keeps each chunk's header.

    ``missing`` are the chunks that the server may not hold. Memory: the headers and one chunk.
    """

    def __init__(self, key: UploadKey, shard: Shard, encoding: Encoding, chunk_bytes: int) -> None:
        self.key = key
        self._source = shard.source
        self._encoding = encoding
        self.chunks = tuple(cut_ranges(shard.ranges, most_elements(encoding, chunk_bytes), encoding.group))
        self.missing = list(self.chunks)
        self.total_bytes = self._bytes_of(self.chunks)
        self.sent_bytes = 0
        self.error: Exception | None = None
        self._headers: dict[ElementRange, ChunkHeader] = {}

    @property
    def headers(self) -> tuple[ChunkHeader, ...]:
        """The headers of all chunks, in order; available once every chunk was sent."""
        return tuple(self._headers[chunk] for chunk in self.chunks)

    @property
    def comes_along(self) -> bool:
        """Whether the upload is small enough to be part of the report."""
        return len(self.chunks) == 1 and self.total_bytes <= INLINE_BYTES

    def whole(self) -> bytes:
        """The serialised ``UploadRequest`` of an upload of one chunk. Raises the errors of the source."""
        frames = list(self.frames(lambda: None, lambda: None))
        if self.error is not None:
            raise self.error
        return frames[0]

    @property
    def digest(self) -> str:
        """Names the update; available once every chunk was sent."""
        return update_digest(self.headers)

    def pieces(self) -> Iterator[tuple[ChunkHeader, npt.NDArray[Any]]]:
        """Every chunk with its payload, each in its own array. Raises the errors of the source."""
        for chunk in self.chunks:
            payload = np.empty(stored_items(self._encoding, chunk.size), self._encoding.storage)
            self._source.read(chunk, self._encoding, payload)
            header = self._headers[chunk] = header_of(chunk, self._encoding, payload.view(np.uint8).data)
            yield header, payload

    def frames(self, tick: Callable[[], None], cancel: Callable[[], object]) -> Iterator[bytes]:
        """The missing chunks as ``UploadRequest`` messages; the first names the upload.

        Runs in gRPC's thread, where a raised error would only be logged: it is kept in ``error`` and the call is
        cancelled.
        """
        key: UploadKey | None = self.key
        largest = max((chunk.size for chunk in self.missing), default=0)
        buffer = np.empty(stored_items(self._encoding, largest), self._encoding.storage)
        for chunk in tuple(self.missing):
            payload = buffer[: stored_items(self._encoding, chunk.size)]
            try:
                self._source.read(chunk, self._encoding, payload)
            except Exception as error:  # noqa: BLE001  # raised again in the caller's thread
                self.error = error
                cancel()
                return
            header = header_of(chunk, self._encoding, payload.view(np.uint8).data)
            self._headers[chunk] = header
            self.sent_bytes += header.payload_bytes
            tick()
            yield frame_upload(header, payload.view(np.uint8).data, key)
            key = None

    def all_sent(self) -> None:
        """Record that the server answered the whole stream, so it holds every chunk."""
        self.missing = []

    def keep(self, held: Held) -> None:
        """Update ``missing`` from the server's list of held chunks; a chunk that was never sent is missing too."""
        self.missing = [chunk for chunk in self.chunks if chunk not in held or chunk not in self._headers]
        self.sent_bytes = self.total_bytes - self._bytes_of(self.missing)

    def _bytes_of(self, chunks: Iterable[ElementRange]) -> int:
        return sum(payload_bytes(self._encoding, chunk.size) for chunk in chunks)
