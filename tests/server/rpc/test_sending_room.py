import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from atoll.server.rpc.sending_room import SendingRoom


class Sender:
    """A message that is on its way until the test says that it was sent."""

    def __init__(self, room: SendingRoom, size: int) -> None:
        self.sending = False
        self.sent = asyncio.Event()
        self.task = asyncio.create_task(self._send(room, size))

    async def _send(self, room: SendingRoom, size: int) -> None:
        async with room.hold(size):
            self.sending = True
            await self.sent.wait()
        self.sending = False

    async def finish(self) -> None:
        self.sent.set()
        await self.task


@asynccontextmanager
async def senders(room: SendingRoom, *sizes: int) -> AsyncIterator[list[Sender]]:
    made = [Sender(room, size) for size in sizes]
    await settled()
    yield made
    for one in made:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in made), return_exceptions=True)
    assert room.taken == 0


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_messages_beyond_the_room_wait_their_turn() -> None:
    async with senders(SendingRoom(100), 40, 40, 40, 10) as (first, second, third, fourth):
        assert [one.sending for one in (first, second, third, fourth)] == [True, True, False, False]
        await first.finish()
        await settled()
        assert third.sending
        assert fourth.sending


async def test_a_message_larger_than_the_room_is_sent_alone() -> None:
    async with senders(SendingRoom(100), 10, 500, 10) as (small, large, last):
        assert [small.sending, large.sending, last.sending] == [True, False, False]
        await small.finish()
        await settled()
        assert [large.sending, last.sending] == [True, False]
        await large.finish()
        await settled()
        assert last.sending


@pytest.mark.parametrize("given_room", [False, True])
async def test_a_stream_that_ends_while_it_waits_holds_nothing(given_room: bool) -> None:
    async with senders(SendingRoom(100), 100, 100, 100) as (first, second, third):
        if given_room:
            first.sent.set()
            await asyncio.sleep(0)  # the room is passed on, and the second task has not run yet
        second.task.cancel()
        await asyncio.gather(second.task, return_exceptions=True)
        await first.finish()
        await settled()
        assert third.sending
