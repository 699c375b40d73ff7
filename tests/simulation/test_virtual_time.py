from __future__ import annotations

import _thread
import asyncio
import signal
import threading
import time
from collections.abc import Callable

import pytest

from atoll.simulation.virtual_time import VirtualLoop, play


def test_a_day_passes_at_once() -> None:
    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(86_400.0)
        return loop.time()

    began = time.monotonic()
    assert play(main) >= 86_400.0
    assert time.monotonic() - began < 60.0


def test_timers_fire_in_their_order() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        fired: list[int] = []
        for delay_s in (30, 10, 20):
            loop.call_later(delay_s, fired.append, delay_s)
        await asyncio.sleep(31)
        return fired

    assert play(main) == [10, 20, 30]


def test_time_is_exactly_that_of_the_timers() -> None:
    """0.1 + 0.2 is not 0.3 in binary: a jump ends at the timer itself, and a timer of 0.3 does not fire with it."""

    async def main(loop: VirtualLoop) -> list[float]:
        seconds: list[float] = []
        for start, end in ((0.1, 0.3), (1e7, 1e7 + 0.1)):
            loop.pass_to(start)
            loop.call_later(0.2, lambda: seconds.append(loop.time()))
            await loop.until(end)
            seconds.append(loop.time())
            await asyncio.sleep(1.0)
        return seconds

    assert play(main) == [0.3, 0.1 + 0.2, 1e7 + 0.1, 1e7 + 0.2]


def test_time_stands_still_while_something_outside_is_awaited() -> None:
    async def main(loop: VirtualLoop) -> tuple[float, bool]:
        done, passed = asyncio.Event(), asyncio.Event()
        loop.call_later(5.0, passed.set)
        with loop.held():
            threading.Timer(0.05, lambda: loop.call_soon_threadsafe(done.set)).start()
            await done.wait()
        return loop.time(), passed.is_set()

    assert play(main) == (0.0, False)


def test_resting_tasks_resume_in_order_after_all_other_events_of_the_instant() -> None:
    async def main(loop: VirtualLoop) -> tuple[float, list[str]]:
        seen: list[str] = []

        async def acts(name: str) -> None:
            await loop.rest()
            seen.append(name)
            for step in range(3):
                await asyncio.sleep(0)
                seen.append(f"{name}{step}")

        async def outside() -> None:
            done = asyncio.Event()
            with loop.held():
                threading.Timer(0.05, lambda: loop.call_soon_threadsafe(done.set)).start()
                await done.wait()
            seen.append("outside")

        await asyncio.gather(acts("a"), acts("b"), outside())
        return loop.time(), seen

    assert play(main) == (0.0, ["outside", "a", "a0", "a1", "a2", "b", "b0", "b1", "b2"])


def test_timers_fire_after_years_too() -> None:
    async def main(loop: VirtualLoop) -> float:
        for _ in range(3):
            await asyncio.sleep(1e8 / 3)
            await asyncio.sleep(0.1)
        return loop.time()

    assert abs(play(main) - 1e8 - 0.3) < 1e-3


def test_within_a_running_loop_as_in_a_notebook() -> None:
    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(60.0)
        return loop.time()

    async def cell() -> float:
        return play(main)

    assert asyncio.run(cell()) >= 60.0


def _interrupt_the_wait() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.parametrize(
    "interrupt",
    [
        pytest.param(_interrupt_the_wait, id="in a wait"),
        pytest.param(_thread.interrupt_main, id="before a wait, which it does not end"),
    ],
)
def test_an_interrupted_cell_ends_what_it_plays(interrupt: Callable[[], None]) -> None:
    ended: list[bool] = []

    async def main(loop: VirtualLoop) -> None:
        interrupt()
        try:
            with loop.held():
                await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def cell() -> None:
        play(main)

    notebook = asyncio.new_event_loop()
    with pytest.raises(KeyboardInterrupt):
        notebook.run_until_complete(cell())
    notebook.close()
    assert ended == [True]
