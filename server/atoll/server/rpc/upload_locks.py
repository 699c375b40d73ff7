"""Work on what an upload consists of: off the event loop, and for one call of a participant at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

STATUSES = 2
"""Statuses that are made at the same time. Each keeps the interpreter busy; more would only slow the event loop."""


class UploadLocks:
    """Lets one call of each participant at a time work on its uploads, and few statuses in all; others wait in turn.

    Single-threaded: only the event loop touches it.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._statuses = asyncio.Semaphore(STATUSES)

    @contextlib.asynccontextmanager
    async def commit(self, participant: str) -> AsyncIterator[None]:
        """The participant's turn to have an upload committed."""
        lock = self._locks.setdefault(participant, asyncio.Lock())
        async with lock:
            yield

    @contextlib.asynccontextmanager
    async def status(self, participant: str) -> AsyncIterator[None]:
        """The participant's turn to have an upload looked at."""
        async with self.commit(participant), self._statuses:
            yield
