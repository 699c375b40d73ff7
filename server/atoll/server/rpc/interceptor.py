"""What stands around every handler: who calls, how their messages are received and sent, what becomes of errors.

Were a handler registered as one that takes a single request, gRPC would receive the request before it is called, no
matter who sends it and how slowly. So every handler is registered as one that takes a stream. On the wire that is the
same; but it runs once the headers are there, and receives the request itself: after the caller is known, in one of the
caller's places (``intake``), within a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from atoll.server import errors
from atoll.server.daemon.audit import RefusalLog
from atoll.server.daemon.limits import MIB, Limits
from atoll.server.ingest.meter import ignore
from atoll.server.rpc import peers
from atoll.server.rpc.admission import Call
from atoll.server.rpc.errors import refuse
from atoll.server.rpc.intake import Intake
from atoll.server.rpc.tensor_count import check_tensor_count

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Enter = Callable[[str, Context], Awaitable[str]]
"""Begins a call of a method before any of its request is received; gives the name that its messages count for."""

STREAM_MESSAGE_S = 60.0
"""A message of a stream that does not bound its waits itself must be whole within so long after the one before."""
_CHUNKS_TO_REQUESTS = 4
"""A caller may have so many chunks arriving for each other message: those are small, and soon there."""
_CHECK_IN = "/atoll.wire.v1.ParticipationService/CheckIn"
_UPLOADS = frozenset({"/atoll.wire.v1.TransferService/Upload", "/atoll.wire.v1.ControlService/UploadModel"})
"""Streams of chunks, whose pace ``authentication.Watch`` looks at."""
_TOLD = frozenset({"request.slow", "request.crowded", "stream.idle", "stream.slow", "stream.unread"})
"""Errors that say that a call was broken off: they are logged with the caller's name."""


async def by_address(_: str, context: Context) -> str:
    """An ``Enter`` for those who have no name."""
    return peers.network_of(context.peer())


@dataclass(frozen=True)
class Bounds:
    """What holds for calls on one port.

    Attributes:
        limits: how large and how slow messages may be.
        enter: see ``Enter``.
        request_s: seconds within which a request must be whole.
        requests: where messages arrive, other than chunks.
        chunks: where chunks arrive.
    """

    limits: Limits
    enter: Enter
    request_s: float
    requests: Intake
    chunks: Intake

    @classmethod
    def named(cls, limits: Limits, message_bytes: int, enter: Enter) -> Bounds:
        """For a port that takes messages of up to ``message_bytes`` from callers with names."""
        each = max(1, limits.arriving_mib_per_caller * MIB // message_bytes)
        most = max(1, limits.arriving_mib * MIB // message_bytes)
        requests = Intake(max(1, each // _CHUNKS_TO_REQUESTS), most)
        return cls(limits, enter, limits.request_s, requests, Intake(each, most))

    @classmethod
    def nameless(cls, limits: Limits, enter: Enter, each: int, most: int, request_s: float) -> Bounds:
        """For a port whose callers have no names: ``each`` is for an address."""
        requests = Intake(each, most)
        return cls(limits, enter, min(request_s, limits.request_s), requests, requests)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a port.

    Args:
        bounds: what holds there; without, anybody may send anything at any pace.
        refused: told the code of every error that a caller gets.
    """

    def __init__(self, bounds: Bounds | None = None, refused: Callable[[str], None] = ignore) -> None:
        self._bounds = bounds
        self._refused = refused
        self._refusals = RefusalLog(log)
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.aio.ServerInterceptor``."""
        name = str(handler_call_details.method)
        wrapped = self._wrapped.get(name)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            method = _Method(name, handler, self._bounds, self._refused, self._refusals)
            wrapped = self._wrapped[name] = method.handler()
        entries = len(handler_call_details.invocation_metadata or ())
        if self._bounds is not None and entries > self._bounds.limits.metadata_entries:
            return self._without_metadata(name, self._bounds.limits.metadata_entries)
        return wrapped

    def _without_metadata(self, name: str, most: int) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse_all(_: object, context: Context) -> NoReturn:
            error = errors.LimitExceededError(
                "request.metadata", f"the call has over {most} entries of metadata", "send fewer"
            )
            await refuse(context, error, name, self._refused)

        return grpc.stream_stream_rpc_method_handler(refuse_all)


class _Method:
    """One method of a port, with what stands around its handler."""

    def __init__(
        self,
        name: str,
        handler: Any,
        bounds: Bounds | None,
        refused: Callable[[str], None],
        refusals: RefusalLog,
    ) -> None:
        self._name = name
        self._bounds = bounds
        self._refused = refused
        self._refusals = refusals
        self._parse = _parser_of(name, handler.request_deserializer, bounds)
        self._takes_stream = bool(handler.request_streaming)
        self._gives_stream = bool(handler.response_streaming)
        self._serialise = handler.response_serializer
        inputs = "stream" if handler.request_streaming else "unary"
        outputs = "stream" if handler.response_streaming else "unary"
        self._behaviour = getattr(handler, f"{inputs}_{outputs}")
        # A stream may also be answered by a coroutine that writes to the context, as health's Watch is.
        self._gives_itself = self._gives_stream and not inspect.isasyncgenfunction(self._behaviour)

    def handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        """The method as gRPC is to know it."""
        if self._gives_stream:
            return grpc.stream_stream_rpc_method_handler(self._answer_each, response_serializer=self._serialise)
        return grpc.stream_unary_rpc_method_handler(self._answer, response_serializer=self._serialise)

    async def _answer(self, _: object, context: Context) -> Any:
        caller = ""
        try:
            caller = await self._enter(context)
            response = await self._behaviour(await self._request(caller, context), context)
            self._expect_reader(caller, context.peer(), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a status
            await self._refuse(caller, context, error)
        return response

    async def _answer_each(self, _: object, context: Context) -> None:
        caller = ""
        try:
            caller = await self._enter(context)
            given = self._behaviour(await self._request(caller, context), context)
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

    async def _request(self, caller: str, context: Context) -> Any:
        """The request, or the iterator of requests, as the handler takes it."""
        receive = self._receiver(caller, context)
        if self._takes_stream:
            return _Requests(receive, self._parse)
        raw = await receive()
        if raw is grpc.aio.EOF:
            raise errors.InvalidRequestError("request.missing", "the call ended without a request", "send one")
        return self._parse(raw)

    def _receiver(self, caller: str, context: Context) -> Callable[[], Awaitable[Any]]:
        """What receives the next message of a call."""
        bounds = self._bounds
        if bounds is None:
            return context.read
        intake = bounds.chunks if self._name in _UPLOADS else bounds.requests
        if self._name == _CHECK_IN:
            return _first_in_place(intake, caller, context)
        within_s: float | None = None
        if self._name not in _UPLOADS:
            within_s = STREAM_MESSAGE_S if self._takes_stream else bounds.request_s
        return lambda: intake.receive(caller, context.read, within_s)

    async def _write(self, context: Context, response: Any) -> None:
        if self._bounds is None:
            await context.write(response)
            return
        within_s = self._bounds.limits.unread_s
        try:
            async with asyncio.timeout(within_s):
                await context.write(response)
        except TimeoutError:
            raise _unread(within_s) from None

    def _expect_reader(self, caller: str, peer: str, call: Call) -> None:
        """Close the connection if the caller does not take the one answer, which gRPC sends by itself."""
        if self._bounds is None:
            return
        within_s = self._bounds.limits.unread_s

        def give_up() -> None:
            error = _unread(within_s)
            self._refused(error.detail.code)
            self._refusals.tell(caller, error)
            loop.run_in_executor(None, peers.cut, peer)

        def ended(_: Any) -> None:
            timer.cancel()

        loop = asyncio.get_running_loop()
        timer = loop.call_later(within_s, give_up)
        call.add_done_callback(ended)

    async def _refuse(self, caller: str, context: Context, error: Exception) -> NoReturn:
        code = error.detail.code if isinstance(error, errors.ServerError) else ""
        if code in _TOLD:
            self._refusals.tell(caller, error)
        try:
            await refuse(context, error, self._name, self._refused)
        finally:
            if code == "stream.unread":
                await asyncio.get_running_loop().run_in_executor(None, peers.cut, context.peer())


class _Requests:
    """The requests of a stream. None is held on to once it is given."""

    def __init__(self, receive: Callable[[], Awaitable[Any]], parse: Callable[[bytes], Any]) -> None:
        self._receive = receive
        self._parse = parse

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        raw = await self._receive()
        if raw is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._parse(raw)


def _first_in_place(intake: Intake, caller: str, context: Context) -> Callable[[], Awaitable[Any]]:
    """Receives messages of which the first alone takes a place.

    For a stream that mostly is silent, of which each caller has one: further messages of it are few, and the handler
    bounds the wait for the first.
    """
    begun = False

    async def receive() -> Any:
        nonlocal begun
        if begun:
            return await context.read()
        begun = True
        return await intake.receive(caller, context.read)

    return receive


def _unread(within_s: float) -> errors.LimitExceededError:
    return errors.LimitExceededError(
        "stream.unread",
        f"the caller took nothing of a message for {within_s:g} s; its connection is closed",
        "read what was asked for, or cancel the call",
        retry_after_s=1.0,
    )


def _parser_of(name: str, deserialise: Callable[[bytes], Any] | None, bounds: Bounds | None) -> Callable[[bytes], Any]:
    """What makes a request of a raw message, once its size is found to be within bounds."""
    check = _any_size if bounds is None else _LARGE.get(name) or _at_most(bounds.limits.request_bytes)

    def parse(raw: bytes) -> Any:
        check(raw)
        if deserialise is None:
            return raw  # chunks pass untouched
        try:
            return deserialise(raw)
        except DecodeError as error:
            raise errors.InvalidRequestError(
                "wire.message", f"the message cannot be read: {error}", "use a client of this protocol version"
            ) from None

    return parse


def _any_size(_: bytes) -> None:
    """The size is bounded by gRPC alone."""


_LARGE: dict[str, Callable[[bytes], None]] = {
    "/atoll.wire.v1.TransferService/Upload": _any_size,
    "/atoll.wire.v1.ControlService/UploadModel": _any_size,
    "/atoll.wire.v1.ControlService/SubmitRun": check_tensor_count,
}
"""What checks requests that hold chunks or layouts."""


def _at_most(most: int) -> Callable[[bytes], None]:
    def check(raw: bytes) -> None:
        if len(raw) > most:
            raise errors.LimitExceededError(
                "request.bytes", f"a request of {len(raw)} bytes; at most {most}", "send less"
            )

    return check
