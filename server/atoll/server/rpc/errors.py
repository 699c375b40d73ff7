"""Converts exceptions to gRPC statuses with an ``ErrorDetail`` trailer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import grpc
import grpc.aio

from atoll.server import errors
from atoll.server.ingest.transfer_meter import ignore
from atoll.wire.errors import WireError
from atoll.wire.status import ErrorDetail, Fault

log = logging.getLogger(__name__)

MAX_STATUS_CHARS = 256
MAX_MESSAGE_BYTES = 3072
MAX_REMEDY_BYTES = 512
"""With these limits an error, escaped and in base64, stays below 8 KiB of metadata, which every gRPC client accepts."""

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


def status_of_kind(kind: type[errors.ServerError]) -> grpc.StatusCode:
    """The gRPC status for errors of this class."""
    return next(status for known, status in _STATUSES if issubclass(kind, known))


def status_of(error: Exception) -> tuple[grpc.StatusCode, ErrorDetail] | None:
    """The status and detail for an error that callers may see; None for a bug of the server."""
    if isinstance(error, errors.ServerError):
        return status_of_kind(type(error)), error.detail
    if isinstance(error, WireError):
        return grpc.StatusCode.INVALID_ARGUMENT, ErrorDetail("wire.invalid", Fault.CALLER, str(error))
    return None


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str, refused: Callable[[str], None] = ignore
) -> NoReturn:
    """End the call with the status of ``error``. The traceback of an unexpected error goes to the log only.

    ``refused`` is called with the error's code.
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


def _bounded(detail: ErrorDetail) -> ErrorDetail:
    return replace(
        detail, message=_cut(detail.message, MAX_MESSAGE_BYTES), remedy=_cut(detail.remedy, MAX_REMEDY_BYTES)
    )


def _cut(text: str, most_bytes: int) -> str:
    """The text, cut to as many whole lines as fit; a single line is cut within the line."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most_bytes:
        return raw.decode()
    head = raw[: most_bytes - 40].decode("utf-8", "ignore")
    lines, _, _ = head.rpartition("\n")
    shown = lines or head
    return f"{shown}\n... and {len(raw) - len(shown.encode())} bytes more"
