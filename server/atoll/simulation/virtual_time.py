"""An event loop whose time is virtual: it passes only while there is nothing left to compute.

Timers of the server (deadlines, retries, silence) and of participants (speed, availability) run on the loop's clock, so
a report window of ten minutes costs no time. When no callback is ready, time jumps to the next timer. While work of
another process is awaited (``held``), time stands still, so the order of events does not depend on how fast a machine
is.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from atoll.simulation.threads import one_thread

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

T = TypeVar("T")
LEAST_S = 1e-6
"""Shortest jump, and resolution of the clock: a float of many days does not change by a nanosecond."""


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for files only while time is held; otherwise waiting is what makes time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.holds = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See ``selectors``; a wait without end and without a hold cannot happen to a run that is watched."""
        if self.holds and timeout != 0:
            return super().select(None)
        if timeout is not None and timeout > 0:
            found = super().select(0)
            if not found:
                self.now_s += max(timeout, LEAST_S)
            return found
        return super().select(timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual seconds, from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # asyncio fires timers that are due before now + resolution; with its nanosecond the sum would be now itself.
        self._clock_resolution = LEAST_S

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_s

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No time passes inside: something outside of this process is awaited."""
        self._jumping.holds += 1
        try:
            yield
        finally:
            self._jumping.holds -= 1


def play(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a virtual clock of its own, with one numeric thread.

    Where this thread already runs an event loop, as a notebook's does, it runs in another thread while this one waits.
    ``KeyboardInterrupt`` cancels it and is raised once it has ended.
    """
    loop = VirtualLoop()

    def here() -> T:
        with one_thread(), asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(main(loop))

    if not _runs_a_loop():
        return here()
    with ThreadPoolExecutor(1, "simulation") as pool:
        pool.submit(_nothing).result()  # an interrupt while a thread starts would leave it alone
        try:
            return pool.submit(here).result()
        except KeyboardInterrupt:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(_cancel_all, loop)
            raise


def _nothing() -> None:
    pass


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _cancel_all(loop: VirtualLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
