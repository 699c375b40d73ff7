"""Limits the bytes of invitations that are sent concurrently."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

MIB = 1 << 20
SENDING_BYTES = 32 * MIB
"""Maximum bytes of invitations that are passed to gRPC but not sent yet: about 1,000 with a small model inside.

An invitation is joined from its two parts when it is sent, and gRPC keeps a copy until the connection has taken it. A
cohort of 10,000 is invited at the same moment, so without this limit there would be 10,000 copies of the model.
"""


class SendingRoom:
    """Room for messages being sent, first come, first served. Single-threaded: only the event loop uses it.

    Args:
        most_bytes: maximum total of all messages. A larger message is sent alone.
    """

    def __init__(self, most_bytes: int = SENDING_BYTES) -> None:
        self._most = most_bytes
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Wait for room for a message of ``size`` bytes, and hold it while it is sent."""
        await self.acquire(size)
        try:
            yield
        finally:
            self.release(size)

    async def acquire(self, size: int) -> None:
        """Wait for room for a message of ``size`` bytes; free it with ``release``."""
        if self._waiting or not self._has_room(size):
            await self._wait(size)
        else:
            self._taken += size

    def release(self, size: int) -> None:
        """Free the room of a message that was sent or given up."""
        self._taken -= size
        self._pass_on()

    @property
    def taken(self) -> int:
        """Bytes of the messages being sent."""
        return self._taken

    def _has_room(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._most

    async def _wait(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, turn)
        self._waiting.append(waiter)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was granted room at the same time
                self.release(size)
            else:
                self._waiting.remove(waiter)
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting and self._has_room(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._taken += size
                turn.set_result(None)
