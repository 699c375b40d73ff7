"""Wraps one method of a port: identifies the caller, receives requests, sends answers, maps errors to statuses."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from atoll.server.errors import LimitExceededError, ServerError
from atoll.server.rpc.answers import UNREAD
from atoll.server.rpc.errors import refuse
from atoll.server.rpc.port_bounds import Bounds, Context
from atoll.server.rpc.request_reader import RequestReader
from atoll.server.telemetry.refusal_log import RefusalLog

_BROKEN_OFF = frozenset({"request.slow", "request.crowded", "stream.idle", "stream.slow", UNREAD})
"""Codes of errors that end a call early; they are logged with the caller's name."""


class Refusals:
    """Logs and counts the calls that a port refuses.

    Args:
        log: gets a line for each call that was ended early.
        count: called with the code of every error that is sent to a caller.
    """

    def __init__(self, log: logging.Logger, count: Callable[[str], None]) -> None:
        self.count = count
        self._log = RefusalLog(log)

    def warn(self, caller: str, error: Exception) -> None:
        """Log the error if it ended a call early."""
        if isinstance(error, ServerError) and error.detail.code in _BROKEN_OFF:
            self._log.warn(caller, error)


class Method:
    """Wraps the handler of one method.

    Args:
        name: such as ``/atoll.wire.v1.TransferService/Report``.
        handler: the registered handler.
        bounds: the limits of the port, if any.
        refusals: see ``Refusals``.
    """

    def __init__(self, name: str, handler: Any, bounds: Bounds | None, refusals: Refusals) -> None:
        self._name = name
        self._bounds = bounds
        self._refusals = refusals
        self._requests = RequestReader(
            name, handler.request_deserializer, bounds, streaming=bool(handler.request_streaming)
        )
        self._gives_stream = bool(handler.response_streaming)
        self._serialise = handler.response_serializer
        inputs = "stream" if handler.request_streaming else "unary"
        outputs = "stream" if handler.response_streaming else "unary"
        self._behaviour = getattr(handler, f"{inputs}_{outputs}")
        # A stream may also be answered by a coroutine that writes to the context, as in health's Watch.
        self._gives_itself = self._gives_stream and not inspect.isasyncgenfunction(self._behaviour)

    def handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler to register with gRPC."""
        if self._gives_stream:
            return grpc.stream_stream_rpc_method_handler(self._answer_each, response_serializer=self._serialise)
        return grpc.stream_unary_rpc_method_handler(self._answer)

    async def _answer(self, _: object, context: Context) -> bytes:
        caller = ""
        try:
            caller = await self._enter(context)
            response = await self._behaviour(await self._requests.read(caller, context), context)
            answer = bytes(self._serialise(response))
            self._expect_reader(caller, len(answer), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a status
            await self._refuse(caller, context, error)
        return answer

    async def _answer_each(self, _: object, context: Context) -> None:
        caller = ""
        try:
            caller = await self._enter(context)
            given = self._behaviour(await self._requests.read(caller, context), context)
            if self._gives_itself:
                await given
                return
            async with contextlib.aclosing(given) as responses:
                async for response in responses:
                    await self._write(context, response)
                    del response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a status
            await self._refuse(caller, context, error)

    async def _enter(self, context: Context) -> str:
        return "" if self._bounds is None else await self._bounds.enter(self._name, context)

    async def _write(self, context: Context, response: Any) -> None:
        """Send one message of a stream, within a time limit: gRPC keeps an unread message until the connection ends."""
        if self._bounds is None:
            await context.write(response)
            return
        within_s = self._bounds.limits.unread_s
        try:
            async with asyncio.timeout(within_s):
                await context.write(response)
        except TimeoutError:
            raise LimitExceededError(
                "stream.unread",
                f"the caller took nothing of a message for {within_s:g} s; its connection is closed",
                "read the answer, or cancel the call",
                retry_after_s=1.0,
            ) from None

    def _expect_reader(self, caller: str, size: int, context: Any) -> None:
        if self._bounds is None:
            return
        bounds, peer = self._bounds, context.peer()

        def give_up(error: LimitExceededError) -> None:
            self._refusals.count(error.detail.code)
            self._refusals.warn(caller, error)
            bounds.connections.close(peer)

        bounds.answers.expect(caller, size, context, give_up)

    async def _refuse(self, caller: str, context: Context, error: Exception) -> NoReturn:
        self._refusals.warn(caller, error)
        try:
            await refuse(context, error, self._name, self._refusals.count)
        finally:
            unread_answer = isinstance(error, ServerError) and error.detail.code == UNREAD
            if self._bounds is not None and unread_answer:
                self._bounds.connections.close(context.peer())
