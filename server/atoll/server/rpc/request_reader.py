"""Receives the requests of a call, in one of its caller's slots (``intake``) and within a time limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio

from atoll.server.errors import InvalidRequestError
from atoll.server.rpc.intake import Intake
from atoll.server.rpc.port_bounds import Bounds, Context
from atoll.server.rpc.request_sizes import ATTEND, CHECK_IN, UPLOADS, WORK, Parse, parser_of

Receive = Callable[[], Awaitable[Any]]

STREAM_MESSAGE_S = 60.0
"""Seconds from one message of a stream to the end of the next, unless the stream may be silent."""


class RequestReader:
    """Receives the requests of one method.

    Args:
        method: such as ``/atoll.wire.v1.TransferService/Report``.
        deserialise: parses a message; None to pass it on unparsed.
        bounds: the limits of the port; None for no limits.
        streaming: whether a call is a stream of requests.
    """

    def __init__(self, method: str, deserialise: Parse | None, bounds: Bounds | None, *, streaming: bool) -> None:
        self._bounds = bounds
        self._parse = parser_of(method, deserialise, None if bounds is None else bounds.limits)
        self._streaming = streaming
        self._uploads = method in UPLOADS
        self._opens_with_hello = method in {CHECK_IN, ATTEND}
        self._answers_orders = method == WORK

    async def read(self, caller: str, context: Context) -> Any:
        """The request of a call, or the iterator over its requests, as the handler takes it.

        Raises:
            InvalidRequestError: if there is no request, or it cannot be parsed.
            LimitExceededError: if it is too large or too slow, or its slot went to a caller with fewer messages.
        """
        receive = self._receiver(caller, context)
        if self._streaming:
            return _Requests(receive, self._parse)
        raw = await receive()
        if raw is grpc.aio.EOF:
            raise InvalidRequestError("request.missing", "the call ended without a request", "send one")
        return self._parse(raw)

    def _receiver(self, caller: str, context: Context) -> Receive:
        """The function that receives the next message of a call."""
        bounds = self._bounds
        if bounds is None:
            return context.read
        intake = bounds.chunks if self._uploads else bounds.requests
        if self._opens_with_hello:
            return _first_in_place(intake, caller, context)
        if self._answers_orders:  # silent until there is an order; the handler admits only aggregators
            return context.read
        within_s: float | None = None
        if not self._uploads:
            within_s = STREAM_MESSAGE_S if self._streaming else bounds.request_s
        return lambda: intake.receive(caller, context.read, within_s)


class _Requests:
    """The requests of a stream. A request is no longer referenced here once it is handed over."""

    def __init__(self, receive: Receive, parse: Parse) -> None:
        self._receive = receive
        self._parse = parse

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        raw = await self._receive()
        if raw is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._parse(raw)


def _first_in_place(intake: Intake, caller: str, context: Context) -> Receive:
    """Receive messages; only the first one takes a slot.

    For mostly silent streams of which each caller has one: few messages follow the first, and the handler bounds the
    wait for the first.
    """
    begun = False

    async def receive() -> Any:
        nonlocal begun
        if begun:
            return await context.read()
        begun = True
        return await intake.receive(caller, context.read)

    return receive
