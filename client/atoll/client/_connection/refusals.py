"""Failed calls: their text, whether the refusal is permanent, and the wait that the server requests."""

from __future__ import annotations

import random

import grpc

from atoll.client.errors import NotPermittedError, RefusedError, RoundGoneError
from atoll.client.limits import Limits
from atoll.text.connections import connection_words
from atoll.text.printable import printable
from atoll.wire.status import ErrorDetail, Fault, Recovery, detail_from_trailers

# Status codes to retry if gRPC itself or a proxy ended the call without a detail (docs/protocol.md, "Errors").
_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_TOO_LARGE = ("larger than max", "metadata size exceeds")
"""Parts of gRPC's own messages for refusals that a repetition cannot change."""
_NOT_ADMITTED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})


def error_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, ErrorDetail | None]:
    """Status, text and detail of a failed call, sync or async."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return grpc.StatusCode.UNKNOWN, str(error), None
    detail = detail_from_trailers(error.trailing_metadata() or ())
    if detail is not None:
        return error.code(), printable(str(detail)), detail
    text = (error.details() or error.code().name).rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
    return error.code(), printable(connection_words(text)), None


def raw_text_of(error: grpc.RpcError) -> str:
    """The text of a failed call from gRPC; empty if it has none."""
    return (error.details() or "") if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else ""


def refusal_of(error: grpc.RpcError) -> Exception | None:
    """The error to raise for a failed call that must not be retried; None if it may be retried."""
    code, text, detail = error_of(error)
    if detail is None and _is_too_large(code, text):
        return RefusedError(f"the message is beyond the server's limits: {text}")
    match _by_status(code) if detail is None else detail.recovery:
        case Recovery.REPEAT:
            return None
        case Recovery.ENROL:
            return NotPermittedError(f"the server does not accept this participant: {text}")
        case Recovery.NEXT_TASK if detail is not None and detail.fault is Fault.TIMING:
            return RoundGoneError(text, detail)
        case _:
            return RefusedError(text, detail)


def retry_after_s(detail: ErrorDetail | None, limits: Limits) -> float:
    """The wait that a refusal requests, lengthened at random by up to a quarter to spread the returns.

    0.0 if it requests none; never above ``limits.retry_after_cap_s``.
    """
    if detail is None or detail.retry_after_s is None:
        return 0.0
    spread = random.uniform(1.0, 1.25)  # noqa: S311  # spreads load, hides nothing
    return min(detail.retry_after_s * spread, limits.retry_after_cap_s)


def _by_status(code: grpc.StatusCode) -> Recovery:
    if code in _NOT_ADMITTED:
        return Recovery.ENROL
    return Recovery.REPEAT if code in _TRANSIENT else Recovery.NEXT_TASK


def _is_too_large(code: grpc.StatusCode, text: str) -> bool:
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(words in text for words in _TOO_LARGE)
