"""Streams that may be silent stay open; others are broken off when a message is late."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from atoll.server.config.limits import Limits
from atoll.server.errors import LimitExceededError
from atoll.server.rpc import request_reader
from atoll.server.rpc.answers import Answers
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.intake import Intake
from atoll.server.rpc.port_bounds import Bounds, Context, by_address
from atoll.server.rpc.request_reader import RequestReader
from atoll.server.rpc.request_sizes import ATTEND, CHECK_IN, WORK


class Caller:
    """Sends one message, and a second one on request."""

    def __init__(self) -> None:
        self.second = asyncio.Event()
        self._sent = 0

    async def read(self) -> bytes:
        """The next message."""
        self._sent += 1
        if self._sent > 1:
            await self.second.wait()
        return b"%d" % self._sent


async def requests(method: str, caller: Caller) -> Any:
    limits = Limits()
    places = Intake(1, 1)  # a stream that kept its place while it is silent would leave none
    bounds = Bounds(limits, by_address, cast("Connections", None), 1.0, places, places, Answers(limits))
    reader = RequestReader(method, None, bounds, streaming=True)
    return aiter(await reader.read("an aggregator", cast("Context", caller)))


@pytest.mark.parametrize("method", [CHECK_IN, ATTEND, WORK])
async def test_a_standing_stream_may_be_silent_for_longer_than_a_message_may_take(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_reader, "STREAM_MESSAGE_S", 0.0)
    caller = Caller()
    messages = await requests(method, caller)
    assert await anext(messages) == b"1"
    waiting = asyncio.create_task(anext(messages))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    caller.second.set()
    assert await waiting == b"2"


async def test_another_stream_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "STREAM_MESSAGE_S", 0.0)
    messages = await requests("/atoll.wire.v1.CoordinatorService/None", Caller())
    assert await anext(messages) == b"1"
    with pytest.raises(LimitExceededError, match="was not whole within 0 s"):
        await anext(messages)
