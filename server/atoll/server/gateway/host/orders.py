"""Orders to one gateway: sent down a stream that the gateway opened, each answered once."""

from __future__ import annotations

import asyncio
import itertools

import grpc

from atoll.server.errors import InvalidRequestError, UnavailableError
from atoll.server.rpc.internal_calls import server_error
from atoll.wire.status import detail_from_proto
from atoll.wire.v1 import gateway_pb2

OUTBOX = 1024
WORK_S = 600.0
"""The longest wait for a gateway to fold, or to send a sum: gigabytes over a slow line take a while."""
_STATUSES = {int(code.value[0]): code for code in grpc.StatusCode}


class Orders:
    """The orders of one connection of a gateway. For the event loop alone."""

    def __init__(self, name: str) -> None:
        self.outbox: asyncio.Queue[gateway_pb2.WorkResponse | None] = asyncio.Queue(OUTBOX)
        self._name = name
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[gateway_pb2.OrderDone]] = {}
        self._closed = False

    async def do(self, order: gateway_pb2.WorkResponse, within_s: float = WORK_S) -> gateway_pb2.OrderDone:
        """Send an order, and return its outcome.

        Raises:
            UnavailableError: if the gateway disconnects, or does not answer in time.
            ServerError: as the gateway says.
        """
        if self._closed:
            raise self._lost()
        order.number = next(self._numbers)
        outcome: asyncio.Future[gateway_pb2.OrderDone] = asyncio.get_running_loop().create_future()
        self._waiting[order.number] = outcome
        try:
            async with asyncio.timeout(within_s):
                await self.outbox.put(order)
                done = await outcome
        except TimeoutError:
            raise UnavailableError(
                "node.slow", f"{self._name} did not answer within {within_s:g} s", "try again", retry_after_s=1.0
            ) from None
        finally:
            self._waiting.pop(order.number, None)
        if done.status:
            code = _STATUSES.get(done.status, grpc.StatusCode.INTERNAL)
            raise server_error(code, detail_from_proto(done.error))
        return done

    def take(self, message: gateway_pb2.WorkRequest) -> None:
        """Handle one message of the gateway.

        Raises:
            InvalidRequestError: if it is not the outcome of an order.
        """
        if message.WhichOneof("message") != "done":
            raise InvalidRequestError("gateway.order", "after hello only outcomes are expected on this stream")
        outcome = self._waiting.get(message.done.number)
        if outcome is not None and not outcome.done():
            outcome.set_result(message.done)

    def close(self) -> None:
        """The gateway has disconnected: fail what it has not answered."""
        self._closed = True
        for outcome in self._waiting.values():
            if not outcome.done():
                outcome.set_exception(self._lost())

    def _lost(self) -> UnavailableError:
        return UnavailableError("node.away", f"{self._name} has disconnected", "start it again", retry_after_s=1.0)
