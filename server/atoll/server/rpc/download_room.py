"""A limit on the unread download chunks of all callers together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Self

from atoll.processes.memory import memory_bytes
from atoll.server.config.limits import Limits
from atoll.server.errors import LimitExceededError

_RETRY_S = 5.0


class DownloadRoom:
    """Limits the bytes of chunks that have been made but not yet sent by gRPC. Only the event loop uses it.

    Any chunk is admitted while the total is within half of the room. The other half is reserved for callers that hold
    less than their share of the first half, so that callers that do not read cannot starve those that do.

    Args:
        most_bytes: the room of this process.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._size = 0
        self._held: dict[str, int] = {}

    @classmethod
    def of(cls, limits: Limits, processes: int) -> Self:
        """The room of one process, if this many processes serve downloads."""
        return cls(int(memory_bytes() * limits.unread_downloads_share / processes))

    @contextlib.contextmanager
    def hold(self, caller: str, size: int) -> Iterator[None]:
        """Hold room for one chunk of a caller's download.

        Raises:
            LimitExceededError: if there is no room.
        """
        if not self._has_room(caller, size):
            raise LimitExceededError(
                "download.crowded",
                "the server has no memory left for chunks that callers have not read",
                "continue later",
                retry_after_s=_RETRY_S,
            )
        self._size += size
        self._held[caller] = self._held.get(caller, 0) + size
        try:
            yield
        finally:
            self._size -= size
            self._held[caller] -= size
            if not self._held[caller]:
                del self._held[caller]

    def __len__(self) -> int:
        """Bytes held."""
        return self._size

    def _has_room(self, caller: str, size: int) -> bool:
        total, half = self._size + size, self._most // 2
        if total <= half or not self._size:  # every server has room for one chunk
            return True
        mine = self._held.get(caller, 0)
        callers = len(self._held) + (not mine)
        return total <= self._most and mine + size <= half // callers
