"""Answers that are good for a moment: however often they are asked for, they are worked out once in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """What ``make`` answers, kept for ``fresh_s`` seconds. Only one event loop uses it.

    Who asks while an answer is being made waits for that one. Errors are not kept.

    Args:
        make: works the answer out.
        fresh_s: how old an answer may be.
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
        """The answer; raises what ``make`` raises."""
        async with self._making:
            if self._kept is not None and self._clock() - self._kept[0] < self._fresh_s:
                return self._kept[1]
            answer = await self._make()
            self._kept = self._clock(), answer
            return answer
