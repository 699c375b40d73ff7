"""Errors of operators' calls. Each says what to do and has the exit code of a command.

::

    OperatorError             1  the server refused, or its answer cannot be used
    ├── BadInputError         2  a file or an argument is wrong; nothing was done
    ├── UnreachableError      3  the server cannot be reached
    ├── NotPermittedError     4  the certificate is missing, expired, revoked, or not for this
    ├── RunFailedError        5  the awaited run failed or was cancelled
    ├── TimedOutError         1  the awaited run did not end in time
    └── UnknownCallError      1  the server does not know the call: its version differs
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import grpc

from atoll.text.connections import MAIN_PORT, connection_words, is_other_port, is_plaintext
from atoll.text.printable import printable
from atoll.wire.status import ErrorDetail, Fault, detail_from_trailers

_NOT_PERMITTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_LISTED_BY = {
    "run.missing": "run list",
    "population.missing": "privacy ledger",
    "participant.missing": "participants list",
    "token.missing": "token list",
    "project.missing": "project list",
}
"""By error code of a missing name: the command that lists the names."""
MAX_COUNT = 2**32 - 1
"""The largest number in the control protocol (uint32)."""
_TLS_WORDS = ("handshake", "ssl", "certificate")
_CLOSED_WORDS = ("handshake read failed (socket closed)", "handshake read failed (endpoint closing)")
"""gRPC's words for a connection that the other end closed in the handshake, without a reason."""


class OperatorError(Exception):
    """The operation failed.

    Attributes:
        message: what happened.
        remedy: what to do; may be empty.
        exit_code: of a command that ends with this error.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = printable(message, lines=True)
        self.remedy = printable(remedy, lines=True)

    def __str__(self) -> str:
        return f"{self.message}\nWhat to do: {self.remedy}" if self.remedy else self.message


class BadInputError(OperatorError):
    """A file or an argument is wrong; nothing was done."""

    exit_code = 2


class UnreachableError(OperatorError):
    """The server cannot be reached."""

    exit_code = 3


class NotPermittedError(OperatorError):
    """The certificate is missing, expired, revoked, or not for this."""

    exit_code = 4


class RunFailedError(OperatorError):
    """The awaited run failed or was cancelled."""

    exit_code = 5


class TimedOutError(OperatorError):
    """The awaited run did not end in time; it continues."""


class UnknownCallError(OperatorError):
    """The server does not know the call: its version differs, or the wrong port was called."""


def require_count(name: str, value: int, least: int = 0) -> None:
    """Refuse an argument ``name`` that the protocol cannot represent, or that is below ``least``.

    Raises:
        BadInputError: for a value that is not from ``least`` to 2^32 - 1.
    """
    if not least <= value <= MAX_COUNT:
        raise BadInputError(f"{name} = {value}; allowed are whole numbers from {least} to {MAX_COUNT}")


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turn a failed call to the server at ``address`` into an ``OperatorError``."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, address) from error


def error_of(error: grpc.RpcError, address: str) -> OperatorError:
    """The error for a failed call, from its detail if the server sent one, else from its status."""
    code, words = error.code(), error.details() or ""
    detail = detail_from_trailers(_pairs(error)) or ErrorDetail("", Fault.CALLER, words)
    if code in _NOT_PERMITTED:
        return NotPermittedError(detail.message, detail.remedy or "use the credential of an operator (--credentials)")
    if code in _UNREACHABLE:
        return _unreachable(address, detail)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return BadInputError(detail.message, detail.remedy)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return _unimplemented(address, words)
    return OperatorError(detail.message or str(code), detail.remedy or where_listed(detail.code))


def where_listed(code: str) -> str:
    """The remedy for a missing name, by the error's code; empty for other errors."""
    listed_by = _LISTED_BY.get(code)
    return f"`atoll {listed_by}` lists them" if listed_by else ""


def _unreachable(address: str, detail: ErrorDetail) -> UnreachableError:
    if detail.code:
        return UnreachableError(detail.message, detail.remedy)
    remedy = "is it running? `atoll doctor` says more; --server sets another address"
    if any(word in detail.message.lower() for word in _TLS_WORDS):
        remedy = "the certificates do not match: take the credential from this server's data directory (operator.json)"
    if any(words in detail.message.lower() for words in _CLOSED_WORDS):
        remedy = (
            "try again: a load balancer without a ready server (/readyz) closes connections, and so does a server that "
            "starts or stops"
        )
    if is_plaintext(detail.message):
        remedy = "--server HOST:PORT names another port"
    return UnreachableError(f"cannot reach the server at {address}: {connection_words(detail.message)}", remedy)


def _unimplemented(address: str, words: str) -> UnknownCallError:
    if is_other_port(words):
        what = f"{address} is not the main port of a server of this version"
        return UnknownCallError(what, f"give the main port ({MAIN_PORT}), or upgrade the server, or this program")
    return UnknownCallError(f"the server at {address} does not know this call", "upgrade the server, or this program")


def _pairs(error: grpc.RpcError) -> list[tuple[str, str | bytes]]:
    found = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())  # sync and async calls
    return list(found)
