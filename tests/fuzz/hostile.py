"""A server that answers every call as the test says: any bytes, any status, any trailer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Self

import grpc
import grpc.aio

from atoll.wire.status import ERROR_TRAILER

Context = grpc.aio.ServicerContext[bytes, bytes]
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
STREAMS = {"CheckIn", "Download"}


@dataclass(frozen=True)
class Answer:
    """Messages, then the end: in good order, with a status and the bytes of an ``ErrorDetail``, or never."""

    messages: Sequence[bytes]
    code: grpc.StatusCode | None = None
    trailer: bytes = b""
    ends: bool = True


class Hostile(grpc.GenericRpcHandler):
    """Answers by method name, each list over and over; a method without any is out of order."""

    def __init__(self, script: dict[str, list[Answer]]) -> None:
        self.calls: Counter[str] = Counter()
        self.third = asyncio.Event()
        self._script = {name: cycle(answers) for name, answers in script.items() if answers}
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((self,))
        self._port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Bytes in, bytes out."""
        name = str(handler_call_details.method).rpartition("/")[2]

        async def stream(_: object, context: Context) -> AsyncIterator[bytes]:
            answer = self._next(name)
            for message in answer.messages:
                yield message
            await end(context, answer)

        async def unary(_: object, context: Context) -> bytes:
            answer = self._next(name)
            await end(context, answer)
            return answer.messages[0] if answer.messages else b""

        if name in STREAMS:
            kind = grpc.stream_stream_rpc_method_handler if name == "CheckIn" else grpc.unary_stream_rpc_method_handler
            return kind(stream)
        single = grpc.stream_unary_rpc_method_handler if name == "Upload" else grpc.unary_unary_rpc_method_handler
        return single(unary)

    def _next(self, name: str) -> Answer:
        self.calls[name] += 1
        if self.calls["CheckIn"] >= 3:
            self.third.set()
        return next(self._script.get(name, iter(())), Answer((), grpc.StatusCode.UNAVAILABLE))


async def end(context: Context, answer: Answer) -> None:
    """End the call as the answer says."""
    if not answer.ends:
        await asyncio.Event().wait()
    if answer.code is not None:
        if answer.trailer:
            context.set_trailing_metadata(((ERROR_TRAILER, answer.trailer),))
        await context.abort(answer.code, "so there")
