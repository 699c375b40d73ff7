"""Turning exceptions into gRPC statuses with an ``ErrorDetail`` trailer, in one place."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from atoll.server import errors
from atoll.wire.errors import WireError
from atoll.wire.status import ErrorDetail, Fault

log = logging.getLogger(__name__)

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
    (errors.StorageError, grpc.StatusCode.UNAVAILABLE),
    (errors.CorruptDataError, grpc.StatusCode.DATA_LOSS),
)


def status_of(error: Exception) -> tuple[grpc.StatusCode, ErrorDetail] | None:
    """The status and detail for an error that callers may see; None for one that is the server's own bug."""
    if isinstance(error, errors.ServerError):
        for kind, status in _STATUSES:
            if isinstance(error, kind):
                return status, error.detail
    if isinstance(error, WireError):
        return grpc.StatusCode.INVALID_ARGUMENT, ErrorDetail("wire.invalid", Fault.CALLER, str(error))
    return None


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str) -> NoReturn:
    """End the call with the status of ``error``; an unexpected one is logged whole and told to nobody."""
    known = status_of(error)
    if known is None:
        log.error("unexpected error in %s", method, exc_info=error)
        known = (
            grpc.StatusCode.INTERNAL,
            ErrorDetail(
                "server.internal",
                Fault.SERVER,
                f"unexpected {type(error).__name__} in {method}",
                "see the server's log",
            ),
        )
    status, detail = known
    await context.abort(status, str(detail), (detail.trailer(),))


Behaviour = Callable[..., Any]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler so that what it raises reaches the caller as status and detail."""

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
        if handler.response_streaming:
            wrap, make = (
                _guard_stream,
                (
                    grpc.stream_stream_rpc_method_handler
                    if handler.request_streaming
                    else grpc.unary_stream_rpc_method_handler
                ),
            )
            inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
        else:
            wrap, make = (
                _guard_unary,
                (
                    grpc.stream_unary_rpc_method_handler
                    if handler.request_streaming
                    else grpc.unary_unary_rpc_method_handler
                ),
            )
            inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        return make(
            wrap(inner, method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _guard_unary(behaviour: Behaviour, method: str) -> Behaviour:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a status
            await refuse(context, error, method)

    return guarded


def _guard_stream(behaviour: Behaviour, method: str) -> Behaviour:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for response in behaviour(request, context):
                yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a status
            await refuse(context, error, method)

    return guarded
