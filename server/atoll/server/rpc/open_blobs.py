"""Blobs being downloaded: each is opened, mapped and verified once for all concurrent calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from atoll.server.stores import Blob, BlobStore
from atoll.server.threads import in_thread, to_end
from atoll.wire.chunks import frame_download

KEPT_FRAMES = 4
"""Number of serialised chunks of a blob that are cached for concurrent calls."""


class SharedBlob:
    """An open blob; each chunk is verified once, and serialised once for all concurrent calls."""

    def __init__(self, blob: Blob) -> None:
        self.manifest = blob.manifest
        self._blob = blob
        self._frames: OrderedDict[int, bytes] = OrderedDict()

    def frame(self, index: int) -> bytes:
        """Chunk ``index`` as a ``DownloadResponse``. Thread-safe: a race merely makes the same frame twice.

        Raises:
            BlobDamagedError: if it does not match its digest.
        """
        found = self._frames.get(index)
        if found is None:
            found = self._frames[index] = frame_download(index, self._blob.chunk(index))
            while len(self._frames) > KEPT_FRAMES:
                with contextlib.suppress(KeyError):  # another thread took the last one
                    self._frames.popitem(last=False)
        return found


@dataclass(eq=False)
class _Entry:
    readers: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    blob: SharedBlob | None = None


class OpenBlobs:
    """Shares open blobs among the calls of one event loop."""

    def __init__(self, blobs: BlobStore, executor: Executor) -> None:
        self._blobs = blobs
        self._executor = executor
        self._entries: dict[str, _Entry] = {}

    @contextlib.asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[SharedBlob]:
        """The blob of that name.

        Raises:
            BlobMissingError: if there is no such blob.
            BlobDamagedError: if its size or manifest does not match its name.
        """
        entry = self._entries.setdefault(name, _Entry())
        entry.readers += 1
        try:
            yield await self._opened(entry, name)
        finally:
            entry.readers -= 1
            if not entry.readers:
                del self._entries[name]
                entry.stack.close()

    async def _opened(self, entry: _Entry, name: str) -> SharedBlob:
        async with entry.lock:
            if entry.blob is not None:
                return entry.blob
            blob: Blob = await to_end(in_thread(self._executor, entry.stack.enter_context, self._blobs.open(name)))
            entry.blob = SharedBlob(blob)
            return entry.blob
