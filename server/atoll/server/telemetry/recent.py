"""Caches an answer for a short time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Caches the result of ``make`` for ``fresh_s`` seconds. For one event loop.

    Concurrent callers wait for the same result. Errors are not cached.

    Args:
        make: makes the result.
        fresh_s: maximum age of a result.
        clock: seconds of a clock that never goes back.
    """

    def __init__(
        self, make: Callable[[], Awaitable[T]], fresh_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._fresh_s = fresh_s
        self._clock = clock
        self._making = asyncio.Lock()
        self._kept: tuple[float, T] | None = None

    async def __call__(self) -> T:
        """The result; raises what ``make`` raises."""
        async with self._making:
            if self._kept is not None and self._clock() - self._kept[0] < self._fresh_s:
                return self._kept[1]
            answer = await self._make()
            self._kept = self._clock(), answer
            return answer
