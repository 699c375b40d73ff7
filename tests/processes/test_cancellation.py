from __future__ import annotations

import asyncio

from atoll.processes.cancellation import keep_cancellation


async def _repeated(calls: list[str]) -> None:
    """Repeat a call whose failure hides the cancellation, as one of grpc.aio does that ends in the same moment."""
    while True:
        keep_cancellation()
        calls.append("call")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            calls.append("failed")


async def test_a_cancellation_that_a_call_hid_still_ends_the_task() -> None:
    calls: list[str] = []
    task = asyncio.create_task(_repeated(calls))
    await asyncio.sleep(0)
    task.cancel()
    assert await asyncio.wait({task}, timeout=10) == ({task}, set())
    assert task.cancelled()
    assert calls == ["call", "failed"]


async def test_a_task_that_is_not_cancelled_goes_on() -> None:
    keep_cancellation()
