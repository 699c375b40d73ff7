"""Locks for work on uploads: one call of a participant at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

STATUSES = 2
"""Number of statuses made concurrently. Each keeps the interpreter busy; more would slow the event loop."""


class UploadLocks:
    """Lets one call per participant at a time work on its uploads, and ``STATUSES`` calls in total make a status.

    Other calls wait their turn. Single-threaded: only the event loop uses it.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._statuses = asyncio.Semaphore(STATUSES)

    @contextlib.asynccontextmanager
    async def commit(self, participant: str) -> AsyncIterator[None]:
        """Hold the participant's lock while an upload is committed."""
        lock = self._locks.setdefault(participant, asyncio.Lock())
        async with lock:
            yield

    @contextlib.asynccontextmanager
    async def status(self, participant: str) -> AsyncIterator[None]:
        """Hold the participant's lock while a status is made."""
        async with self.commit(participant), self._statuses:
            yield
