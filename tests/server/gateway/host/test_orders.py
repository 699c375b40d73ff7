"""An order lasts as long as the gateway makes progress, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from atoll.server.errors import UnavailableError
from atoll.server.gateway.host import orders as module
from atoll.server.gateway.host.orders import Orders
from atoll.server.ingest.gateway_nodes import SLOW
from atoll.wire.v1 import gateway_pb2
from tests.patience import WAIT_S


class Rig:
    """Orders, a clock, and the gateway's messages."""

    def __init__(self) -> None:
        self.now = 100.0
        self.orders = Orders("aggregator pa", lambda: self.now)

    async def begin(self, work: Coroutine[Any, Any, Any]) -> tuple[asyncio.Task[Any], int]:
        """Begin an order, and return it with its number."""
        task = asyncio.create_task(work)
        async with asyncio.timeout(WAIT_S):
            sent = await self.orders.outbox.get()
        assert sent is not None
        return task, sent.number

    def answer(self, number: int, steps: int) -> None:
        done = gateway_pb2.OrderDone(number=number, steps=steps)
        self.orders.take(gateway_pb2.WorkRequest(done=done))


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(module, "STALLED_S", 0.05)
    return Rig()


def fold() -> gateway_pb2.WorkResponse:
    order = gateway_pb2.WorkResponse()
    order.fold.SetInParent()
    return order


async def ended(task: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(WAIT_S):
        return await task


async def test_one_that_is_never_answered_is_given_up(rig: Rig) -> None:
    task, _ = await rig.begin(rig.orders.do(fold()))
    rig.now += 1.0
    with pytest.raises(UnavailableError, match="did not answer") as caught:
        await ended(task)
    assert caught.value.detail.code == SLOW


async def test_steps_in_the_answers_to_questions_keep_it(rig: Rig) -> None:
    task, number = await rig.begin(rig.orders.do(fold()))
    for steps in range(1, 5):
        asking, question = await rig.begin(rig.orders.do(gateway_pb2.WorkResponse()))
        rig.now += 0.04
        rig.answer(question, steps)
        await ended(asking)
    assert not task.done()
    rig.answer(number, 5)
    await ended(task)


async def test_answers_to_questions_without_steps_do_not(rig: Rig) -> None:
    task, _ = await rig.begin(rig.orders.do(fold()))
    while not task.done():
        asking, question = await rig.begin(rig.orders.do(gateway_pb2.WorkResponse()))
        rig.now += 0.02
        rig.answer(question, 0)
        await ended(asking)
    with pytest.raises(UnavailableError, match="did not answer"):
        await ended(task)


async def test_a_gateway_that_reads_nothing_is_given_up(rig: Rig) -> None:
    while not rig.orders.outbox.full():
        rig.orders.outbox.put_nowait(fold())
    with pytest.raises(UnavailableError) as caught:
        await rig.orders.do(fold())
    assert caught.value.detail.code == SLOW


async def test_the_end_of_the_stream_fails_what_is_open(rig: Rig) -> None:
    task, _ = await rig.begin(rig.orders.do(fold()))
    rig.orders.close()
    with pytest.raises(UnavailableError, match="has disconnected"):
        await ended(task)
