"""Calls between the processes of one server: an error in one is re-raised in the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc
import grpc.aio

from atoll.processes.cancellation import keep_cancellation
from atoll.server import errors
from atoll.wire.status import ErrorDetail, Fault, detail_from_trailers

_KINDS: dict[grpc.StatusCode, type[errors.ServerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.ConflictError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.ForbiddenError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitExceededError,
    grpc.StatusCode.ABORTED: errors.TooLateError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.DATA_LOSS: errors.CorruptDataError,
}


@asynccontextmanager
async def as_server_errors(peer: str) -> AsyncIterator[None]:
    """Re-raise a failed call to ``peer`` as the ``ServerError`` that was raised there.

    Raises:
        ServerError: of the kind that the status names; ``UnavailableError`` if the process does not answer in time.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        keep_cancellation()
        detail = detail_from_trailers(list(error.trailing_metadata() or ()))
        if detail is None:
            message = f"the {peer} does not answer: {error.code().name} {error.details()}"
            raise errors.UnavailableError("server.process", message, "try again", retry_after_s=1.0) from error
        raise server_error(error.code(), detail) from error


@contextmanager
def closing_is_unavailability(peer: str) -> Iterator[None]:
    """Turn the cancellation of a call to ``peer``, because this process closes the channel to it, into an error.

    A handler that let this cancellation pass would send its own caller no status: the caller would wait until its
    deadline. A cancellation of the running task passes.

    Raises:
        UnavailableError: if the channel is closed before the answer.
    """
    try:
        yield
    except asyncio.CancelledError as cancelled:
        keep_cancellation()
        message = f"the connection to the {peer} ended before it answered"
        raise errors.UnavailableError("server.process", message, "try again", retry_after_s=1.0) from cancelled


def server_error(code: grpc.StatusCode, detail: ErrorDetail) -> errors.ServerError:
    """The error that was raised in another process, from its status and detail."""
    kind = _kind(code, detail)
    return kind(detail.code, detail.message, detail.remedy, detail.retry_after_s, recovery=detail.recovery)


def _kind(code: grpc.StatusCode, detail: ErrorDetail) -> type[errors.ServerError]:
    """The class of the error; a full or failing disk shares its status with errors caused by callers."""
    if code is grpc.StatusCode.UNAVAILABLE and detail.code.startswith("storage."):
        return errors.StorageError
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and detail.fault is Fault.SERVER:
        return errors.StorageFullError
    return _KINDS.get(code, errors.ServerError)
