"""Keeps a server's turn at a database that several servers may use, and notices its end."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from atoll.server.errors import ServerError
from atoll.server.stores import Store
from atoll.server.stores.standby import standing_by

log = logging.getLogger(__name__)

BEAT_S = 0.5
"""Seconds between two statements of a server that has nothing to write."""


class Heartbeat:
    """Keeps the turn of a server, and notices its end.

    If there is no standby, this server keeps its participants while the database is unavailable. With standbys, it
    steps down as soon as they may have taken over, so that its participants turn to them. They do not take over during
    a long statement: a second connection checks whether it is still running.

    Args:
        store: of a PostgreSQL database; its writer's connection holds the lock.
        silence_s: seconds without a statement after which another server may take over.
        over: set when the turn is over.

    Attributes:
        reason: a sentence about the end of the turn.
        standbys: number of standbys at the last beat.
    """

    def __init__(self, store: Store, silence_s: float, over: asyncio.Event) -> None:
        if store.turn is None:
            raise TypeError(store)
        self._writer = store.writer
        self._reader = store.reader
        self._turn = store.turn
        self._silence_s = silence_s
        self._written_at = time.monotonic()
        self._over = over
        self.reason = ""
        self.standbys = 0
        self._task = asyncio.create_task(self._beat(), name="heartbeat")

    def note_commit(self, functions: int, seconds: float, failed: bool) -> None:
        """``Writer.watch`` calls this after each commit, in its own thread."""
        del functions, seconds
        if not failed:
            self._written_at = time.monotonic()

    async def stop(self) -> None:
        """Stop sending statements."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self) -> None:
        while not self._over.is_set():
            speaking = asyncio.create_task(self._speak())
            while not (await asyncio.wait({speaking}, timeout=BEAT_S))[0]:
                await self._look_for_statement()
                self._look()
            self._look()
            await asyncio.sleep(BEAT_S)

    async def _speak(self) -> None:
        try:
            self.standbys = await self._writer.run(standing_by)
        except ServerError as error:
            log.debug("the database was not reached: %s", error)

    async def _look_for_statement(self) -> None:
        """Ask over a second, short-lived connection whether the writer's connection is running a statement."""
        asked_at = time.monotonic()
        patience_s = max(BEAT_S, self._silence_s - (asked_at - self._written_at))
        with suppress(ServerError, TimeoutError):
            async with asyncio.timeout(patience_s):
                active = await self._reader.run(self._turn.is_active)
            if active:
                self._written_at = max(self._written_at, asked_at)

    def _look(self) -> None:
        silent_s = time.monotonic() - self._written_at
        if self._turn.over:
            self._end("another server has taken over")
        elif self.standbys and silent_s > self._silence_s:
            others = "1 other server stands" if self.standbys == 1 else f"{self.standbys} other servers stand"
            self._end(f"{silent_s:.1f} s without an answer of the database, and {others} by")

    def _end(self, reason: str) -> None:
        self.reason = reason
        self._over.set()
