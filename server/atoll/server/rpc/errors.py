"""Turning exceptions into gRPC statuses with an ``ErrorDetail`` trailer, in one place."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from atoll.server import errors
from atoll.server.daemon.limits import Limits
from atoll.server.ingest.meter import ignore
from atoll.server.rpc.tensor_count import check_tensor_count
from atoll.wire.errors import WireError
from atoll.wire.status import ErrorDetail, Fault

log = logging.getLogger(__name__)

MAX_STATUS_CHARS = 256
MAX_MESSAGE_BYTES = 3072
MAX_REMEDY_BYTES = 512
"""Together, escaped and in base64, they stay below the 8 KiB of metadata that every gRPC client takes."""

# First match wins; subclasses come before their bases.
_STATUSES: tuple[tuple[type[errors.ServerError], grpc.StatusCode], ...] = (
    (errors.InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFoundError, grpc.StatusCode.NOT_FOUND),
    (errors.ConflictError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (errors.ForbiddenError, grpc.StatusCode.PERMISSION_DENIED),
    (errors.LimitExceededError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.TooLateError, grpc.StatusCode.ABORTED),
    (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (errors.StorageFullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.StorageError, grpc.StatusCode.UNAVAILABLE),
    (errors.CorruptDataError, grpc.StatusCode.DATA_LOSS),
    (errors.ServerError, grpc.StatusCode.INTERNAL),
)

Behaviour = Callable[..., Any]


def status_of_kind(kind: type[errors.ServerError]) -> grpc.StatusCode:
    """The status that errors of this class travel with."""
    return next(status for known, status in _STATUSES if issubclass(kind, known))


def status_of(error: Exception) -> tuple[grpc.StatusCode, ErrorDetail] | None:
    """The status and detail for an error that callers may see; None for one that is the server's own bug."""
    if isinstance(error, errors.ServerError):
        return status_of_kind(type(error)), error.detail
    if isinstance(error, WireError):
        return grpc.StatusCode.INVALID_ARGUMENT, ErrorDetail("wire.invalid", Fault.CALLER, str(error))
    return None


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str, refused: Callable[[str], None] = ignore
) -> NoReturn:
    """End the call with the status of ``error``; an unexpected one is logged whole and told to nobody.

    ``refused`` is told the error's code.
    """
    known = status_of(error)
    if known is None:
        log.error("unexpected error in %s", method, exc_info=error)
        message = f"unexpected {type(error).__name__} in {method}"
        detail = ErrorDetail("server.internal", Fault.SERVER, message, "see the server's log")
        known = grpc.StatusCode.INTERNAL, detail
    elif isinstance(error, errors.StorageError | errors.CorruptDataError):
        log.error("%s failed: %s", method, error.logged)
    status, detail = known
    refused(detail.code)
    await context.abort(status, str(detail)[:MAX_STATUS_CHARS], (_bounded(detail).trailer(),))


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler: what it raises, and what cannot be parsed, reaches the caller as status and detail.

    Args:
        limits: requests and metadata beyond them are not parsed; without, any are.
        refused: told the code of every error that a caller gets.
    """

    def __init__(self, limits: Limits | None = None, refused: Callable[[str], None] = ignore) -> None:
        self._limits = limits
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ``grpc.aio.ServerInterceptor``."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = str(handler_call_details.method)
        parse = _parser_of(handler, self._bounds_of(method, handler_call_details))
        inputs = "stream" if handler.request_streaming else "unary"
        outputs = "stream" if handler.response_streaming else "unary"
        make = getattr(grpc, f"{inputs}_{outputs}_rpc_method_handler")
        behaviour = getattr(handler, f"{inputs}_{outputs}")
        # A stream may also be answered by a coroutine that writes to the context, as health's Watch is.
        guard = _guard_stream if inspect.isasyncgenfunction(behaviour) else _guard_call
        wrapped: grpc.RpcMethodHandler[Any, Any] = make(
            guard(behaviour, method, parse, self._refused), response_serializer=handler.response_serializer
        )
        return wrapped

    def _bounds_of(self, method: str, details: grpc.HandlerCallDetails) -> Callable[[bytes], None]:
        """What checks a raw request before it is parsed."""
        limits = self._limits
        if limits is None:
            return _any_size
        if len(details.invocation_metadata or ()) > limits.metadata_entries:
            return _too_much_metadata(limits.metadata_entries)
        return _LARGE.get(method) or _at_most(limits.request_bytes)


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


def _too_much_metadata(most: int) -> Callable[[bytes], None]:
    def refuse_all(_: bytes) -> None:
        raise errors.LimitExceededError(
            "request.metadata", f"the call has over {most} entries of metadata", "send fewer"
        )

    return refuse_all


def _parser_of(handler: Any, check: Callable[[bytes], None]) -> Behaviour:
    """What makes the handler's request, or iterator of requests, of raw messages."""
    deserialise = handler.request_deserializer
    if deserialise is None and check is _any_size:
        return lambda raw: raw  # chunks pass untouched

    def parse(raw: bytes) -> Any:
        check(raw)
        if deserialise is None:
            return raw
        try:
            return deserialise(raw)
        except DecodeError as error:
            raise errors.InvalidRequestError(
                "wire.message", f"the message cannot be read: {error}", "use a client of this protocol version"
            ) from None

    async def parse_each(raws: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for raw in raws:
            yield parse(raw)

    return parse_each if handler.request_streaming else parse


def _guard_call(behaviour: Behaviour, method: str, parse: Behaviour, refused: Callable[[str], None]) -> Behaviour:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(parse(request), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a status
            await refuse(context, error, method, refused)

    return guarded


def _guard_stream(behaviour: Behaviour, method: str, parse: Behaviour, refused: Callable[[str], None]) -> Behaviour:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async with contextlib.aclosing(behaviour(parse(request), context)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a status
            await refuse(context, error, method, refused)

    return guarded


def _bounded(detail: ErrorDetail) -> ErrorDetail:
    return replace(
        detail, message=_cut(detail.message, MAX_MESSAGE_BYTES), remedy=_cut(detail.remedy, MAX_REMEDY_BYTES)
    )


def _cut(text: str, most_bytes: int) -> str:
    """The text, or as many whole lines of it as fit (of a single line, as much as fits)."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most_bytes:
        return raw.decode()
    head = raw[: most_bytes - 40].decode("utf-8", "ignore")
    lines, _, _ = head.rpartition("\n")
    shown = lines or head
    return f"{shown}\n... and {len(raw) - len(shown.encode())} bytes more"
