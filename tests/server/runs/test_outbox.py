import asyncio
import contextlib

import pytest

from atoll.server.runs.outbox import Outbox
from atoll.wire.v1 import participation_pb2

ONE, TWO = (
    participation_pb2.CheckInResponse(return_spread=participation_pb2.ReturnSpread(return_spread_s=seconds))
    for seconds in (1.0, 2.0)
)


async def test_instructions_come_in_order() -> None:
    outbox = Outbox()
    for instruction in (ONE, TWO, None):
        outbox.put(instruction)
    assert [await outbox.get() for _ in range(3)] == [ONE, TWO, None]
    assert len(outbox) == 0


async def test_a_waiting_reader_gets_the_next_instruction() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.put(ONE)
    outbox.put(TWO)
    assert await waiting == ONE
    assert await outbox.get() == TWO


async def test_a_cancelled_wait_takes_nothing() -> None:
    """Even if it is cancelled after it is woken and before it runs."""
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    outbox.put(ONE)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert await outbox.get() == ONE


async def test_a_full_one_takes_no_more() -> None:
    outbox = Outbox(1)
    outbox.put(ONE)
    assert outbox.full
    with pytest.raises(asyncio.QueueFull):
        outbox.put(TWO)
    assert outbox.take() == ONE
    with pytest.raises(asyncio.QueueEmpty):
        outbox.take()


async def test_a_second_reader_is_refused() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.get())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one reader"):
        await outbox.get()
    outbox.put(ONE)
    assert await waiting == ONE
