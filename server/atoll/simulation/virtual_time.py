"""An event loop with virtual time, which passes only while there is nothing left to compute.

Timers of the server (deadlines, retries, silence) and of participants (speed, availability) run on the loop's clock, so
a report window of ten minutes costs no time. When no callback is ready, time jumps to the next timer. While work of
another process is awaited (``held``), time stands still, so the order of events does not depend on the machine's speed.

Time depends only on the timers: a jump ends exactly at the next timer, however it was composed. So a simulation that
resumes from a recorded instant passes the same instants as one that was never interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import selectors
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from atoll.simulation.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

T = TypeVar("T")
_LOOK_S = 0.5
"""Seconds between checks for an interrupt, because one that comes just before a wait does not end it."""


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for files only while time is held; otherwise a wait makes time pass, by ``jump``."""

    def __init__(self, jump: Callable[[], None]) -> None:
        super().__init__()
        self.holds = 0
        self._jump = jump
        self.resting: list[tuple[tuple[int, ...], int, asyncio.Future[None]]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See ``selectors``; an endless wait without a hold cannot happen to a watched run."""
        if self.holds and timeout != 0:
            return super().select(None)
        if self.resting and timeout != 0:
            _release(heapq.heappop(self.resting)[-1])
            return super().select(0)
        if timeout is not None and timeout > 0:
            found = super().select(0)
            if not found:
                self._jump()
            return found
        return super().select(timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual seconds, from 0."""

    _scheduled: list[asyncio.TimerHandle]  # asyncio's heap of timers

    def __init__(self) -> None:
        self._now_s = 0.0
        self._rests = 0
        self._selecting = _JumpingSelector(self._jump)
        super().__init__(self._selecting)
        self.pass_to(0.0)

    def time(self) -> float:
        """Virtual seconds since the start of the simulation."""
        return self._now_s

    def pass_to(self, second: float) -> None:
        """Advance time to a second that is not in the past."""
        self._now_s = max(self._now_s, second)
        # asyncio fires timers before now + resolution: only those of this instant.
        self._clock_resolution = math.ulp(self._now_s)

    async def until(self, second: float) -> None:
        """Wait until a virtual second. Unlike a relative sleep it ends exactly then; at once if it has passed."""
        if second > self._now_s:
            reached = self.create_future()
            timer = self.call_at(second, _reach, reached)
            try:
                await reached
            finally:
                timer.cancel()

    async def rest(self, order: tuple[int, ...] = ()) -> None:
        """Wait until all events of this instant have happened, including those in other processes.

        Waiters continue one after the other, by ``order`` and then by call order, each when the effects of the previous
        one are over. So they act in the same order whether work runs here at once or is awaited.
        """
        waits = self.create_future()
        self._rests += 1
        heapq.heappush(self._selecting.resting, (order, self._rests, waits))
        await waits

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A context in which no time passes, because work outside of this process is awaited."""
        self._selecting.holds += 1
        try:
            yield
        finally:
            self._selecting.holds -= 1

    def _jump(self) -> None:
        self.pass_to(self._scheduled[0].when())


def _release(waits: asyncio.Future[None]) -> None:
    if not waits.done():
        waits.set_result(None)


def held() -> contextlib.AbstractContextManager[None]:
    """``VirtualLoop.held`` of the loop that is running."""
    return virtual_loop().held()


def virtual_loop() -> VirtualLoop:
    """The loop that is running.

    Raises:
        TypeError: if it is another kind of loop.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise TypeError(f"a simulation runs on a VirtualLoop, not on a {type(loop).__name__}")
    return loop


def play(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on its own virtual clock, with one numeric thread.

    If this thread already runs an event loop, as in a notebook, it runs in another thread while this one waits.
    ``KeyboardInterrupt`` cancels it and is raised once it has ended.
    """
    loop = VirtualLoop()

    def here() -> T:
        with one_thread(), asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(main(loop))

    if not _runs_a_loop():
        return here()
    with ThreadPoolExecutor(1, "simulation") as pool:
        pool.submit(_nothing).result()  # an interrupt while a thread starts would leave it running
        try:
            playing = pool.submit(here)
            while not wait((playing,), _LOOK_S).done:
                pass
            return playing.result()
        except KeyboardInterrupt:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(_cancel_all, loop)
            raise


def _nothing() -> None:
    pass


def _reach(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _cancel_all(loop: VirtualLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
