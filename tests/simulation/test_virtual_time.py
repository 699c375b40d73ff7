from __future__ import annotations

import asyncio
import threading
import time

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


def test_time_stands_still_while_something_outside_is_awaited() -> None:
    async def main(loop: VirtualLoop) -> tuple[float, bool]:
        done, passed = asyncio.Event(), asyncio.Event()
        loop.call_later(5.0, passed.set)
        with loop.held():
            threading.Timer(0.05, lambda: loop.call_soon_threadsafe(done.set)).start()
            await done.wait()
        return loop.time(), passed.is_set()

    assert play(main) == (0.0, False)


def test_timers_fire_after_years_too() -> None:
    async def main(loop: VirtualLoop) -> float:
        for _ in range(3):
            await asyncio.sleep(1e8 / 3)
            await asyncio.sleep(0.1)
        return loop.time()

    assert abs(play(main) - 1e8 - 0.3) < 1e-3
