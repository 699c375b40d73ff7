"""Orders to one gateway, sent over a stream that the gateway opened; each is answered once."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable

import grpc

from atoll.server.errors import InvalidRequestError, UnavailableError
from atoll.server.ingest.gateway_nodes import SLOW
from atoll.server.rpc.internal_calls import server_error
from atoll.wire.status import detail_from_proto
from atoll.wire.v1 import gateway_pb2

OUTBOX = 1024
STALLED_S = 120.0
"""Seconds without progress of a gateway's work after which its orders are given up. Every answer, including those to
probes (``service.ASK_S``), reports the number of steps done, so gigabytes over a slow line may take as long as they
need."""
_STATUSES = {int(code.value[0]): code for code in grpc.StatusCode}


class Orders:
    """The orders of one connection of a gateway. Only the event loop uses it.

    Args:
        name: the gateway's name in messages.
        clock: seconds, monotonic.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.outbox: asyncio.Queue[gateway_pb2.WorkResponse | None] = asyncio.Queue(OUTBOX)
        self._name = name
        self._clock = clock
        self._steps = 0
        self._moved_at = clock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[gateway_pb2.OrderDone]] = {}
        self._closed = False

    async def do(self, order: gateway_pb2.WorkResponse, within_s: float = math.inf) -> gateway_pb2.OrderDone:
        """Send an order, and return its outcome.

        Args:
            order: the order.
            within_s: maximum seconds to wait. An order is also given up ``STALLED_S`` after the last progress.

        Raises:
            UnavailableError: if the gateway disconnects or, with code ``SLOW``, does not answer in time.
            ServerError: the gateway's error.
        """
        if self._closed:
            raise self._lost()
        order.number = next(self._numbers)
        outcome: asyncio.Future[gateway_pb2.OrderDone] = asyncio.get_running_loop().create_future()
        self._waiting[order.number] = outcome
        try:
            await self._send(order)
            done = await self._outcome(outcome, within_s)
        finally:
            self._waiting.pop(order.number, None)
        if done.status:
            code = _STATUSES.get(done.status, grpc.StatusCode.INTERNAL)
            raise server_error(code, detail_from_proto(done.error))
        return done

    async def _send(self, order: gateway_pb2.WorkResponse) -> None:
        try:
            async with asyncio.timeout(STALLED_S):
                await self.outbox.put(order)
        except TimeoutError:
            raise self._slow(STALLED_S) from None

    async def _outcome(self, outcome: asyncio.Future[gateway_pb2.OrderDone], within_s: float) -> gateway_pb2.OrderDone:
        """Wait for an outcome as long as the gateway makes progress."""
        began = self._clock()
        while not outcome.done():
            left_s = min(began + within_s, max(began, self._moved_at) + STALLED_S) - self._clock()
            if left_s <= 0:
                raise self._slow(min(within_s, STALLED_S))
            await asyncio.wait({outcome}, timeout=left_s)
        return outcome.result()

    def take(self, message: gateway_pb2.WorkRequest) -> None:
        """Handle one message of the gateway.

        Raises:
            InvalidRequestError: if it is not the outcome of an order.
        """
        if message.WhichOneof("message") != "done":
            raise InvalidRequestError("gateway.order", "after hello only outcomes are expected on this stream")
        done = message.done
        outcome = self._waiting.get(done.number)
        if done.steps != self._steps:
            self._steps, self._moved_at = done.steps, self._clock()
        if outcome is not None and not outcome.done():
            outcome.set_result(done)

    def close(self) -> None:
        """Fail all unanswered orders, since the gateway has disconnected."""
        self._closed = True
        for outcome in self._waiting.values():
            if not outcome.done():
                outcome.set_exception(self._lost())

    def _slow(self, waited_s: float) -> UnavailableError:
        message = f"{self._name} did not answer within {waited_s:g} s"
        return UnavailableError(SLOW, message, "check its disk and its process", retry_after_s=1.0)

    def _lost(self) -> UnavailableError:
        return UnavailableError("node.away", f"{self._name} has disconnected", "start it again", retry_after_s=1.0)
