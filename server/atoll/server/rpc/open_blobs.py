"""Blobs that are being downloaded: opened, mapped and verified once for all who read them at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import dataclass, field

from atoll.server.stores import Blob, BlobStore


@dataclass(eq=False)
class _Entry:
    readers: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    blob: Blob | None = None


class OpenBlobs:
    """Shares open blobs among the calls of one event loop."""

    def __init__(self, blobs: BlobStore, executor: Executor) -> None:
        self._blobs = blobs
        self._executor = executor
        self._entries: dict[str, _Entry] = {}

    @contextlib.asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Blob]:
        """The blob of that name.

        Raises:
            BlobMissingError: if there is none.
            BlobDamagedError: if its size or manifest is not what its name says.
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

    async def _opened(self, entry: _Entry, name: str) -> Blob:
        async with entry.lock:
            if entry.blob is not None:
                return entry.blob
            opening, loop = self._blobs.open(name), asyncio.get_running_loop()
            blob: Blob = await loop.run_in_executor(self._executor, entry.stack.enter_context, opening)
            entry.blob = blob
            return blob
