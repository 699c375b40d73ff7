"""Errors of the operator's commands, each with its exit code (docs/command-line.md).

::

    CommandError              1  the operation failed
    ├── BadInputError         2  a file or option is wrong; nothing was done
    ├── UnreachableError      3  the server cannot be reached
    ├── NotPermittedError     4  the certificate is missing, expired, revoked, or not for this
    ├── RunFailedError        5  the run that was watched failed or was cancelled
    └── StoppedError        130  interrupted by the user
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
import grpc

from atoll.server.errors import InvalidRequestError, ServerError
from atoll.text.printable import printable
from atoll.wire.status import ErrorDetail, Fault, detail_from_trailers

_NOT_PERMITTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_LISTED_BY = {
    "run.missing": "run list",
    "population.missing": "privacy ledger",
    "participant.missing": "participants list",
    "token.missing": "token list",
}
"""The command that lists the names, by the code of the error about a missing name."""
_TLS_WORDS = ("handshake", "ssl", "certificate")


class CommandError(click.ClickException):
    """The operation failed; shown as one line, with the remedy on a second."""

    exit_code = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(printable(message, lines=True))
        self.remedy = printable(remedy, lines=True)

    def format_message(self) -> str:
        """The message and, on a line of its own, what to do."""
        return f"{self.message}\nWhat to do: {self.remedy}" if self.remedy else self.message


class BadInputError(CommandError):
    """A file or option is wrong; nothing was done."""

    exit_code = 2


class UnreachableError(CommandError):
    """The server cannot be reached."""

    exit_code = 3


class NotPermittedError(CommandError):
    """The certificate is missing, expired, revoked, or not for this."""

    exit_code = 4


class RunFailedError(CommandError):
    """The run that was watched failed or was cancelled."""

    exit_code = 5


class StoppedError(CommandError):
    """Interrupted by the user."""

    exit_code = 130


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turn a failed call to the server at ``address`` into a ``CommandError``."""
    try:
        yield
    except grpc.RpcError as error:
        raise command_error(error, address) from error


@contextmanager
def local_errors() -> Iterator[None]:
    """Turn an error of the server's modules, called in this process, into a ``CommandError``."""
    try:
        yield
    except InvalidRequestError as error:
        raise BadInputError(error.detail.message, error.detail.remedy) from error
    except ServerError as error:
        raise CommandError(str(error), error.detail.remedy) from error


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Turn a failure to write the file ``path`` into a ``BadInputError``."""
    try:
        yield
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error


def command_error(error: grpc.RpcError, address: str) -> CommandError:
    """The error to show for a failed call: from its detail if the server sent one, else from its status."""
    code, words = error.code(), error.details() or ""
    detail = detail_from_trailers(_pairs(error)) or ErrorDetail("", Fault.CALLER, words)
    if code in _NOT_PERMITTED:
        return NotPermittedError(detail.message, detail.remedy or "use the credential of an operator (--credentials)")
    if code in _UNREACHABLE:
        return _unreachable(address, detail)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return BadInputError(detail.message, detail.remedy)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CommandError(f"the server at {address} does not know this call", "upgrade the server, or this program")
    return CommandError(detail.message or str(code), detail.remedy or where_listed(detail.code))


def where_listed(code: str) -> str:
    """What to do about a missing name, by the error's code; empty for other errors."""
    listed_by = _LISTED_BY.get(code)
    return f"`atoll {listed_by}` lists them" if listed_by else ""


def _unreachable(address: str, detail: ErrorDetail) -> CommandError:
    if detail.code:
        return UnreachableError(detail.message, detail.remedy)
    remedy = "is it running? `atoll doctor` says more; --server sets another address"
    if any(word in detail.message.lower() for word in _TLS_WORDS):
        remedy = "the certificates do not match: take the credential from this server's data directory (operator.json)"
    return UnreachableError(f"cannot reach the server at {address}: {detail.message}", remedy)


def _pairs(error: grpc.RpcError) -> list[tuple[str, str | bytes]]:
    return [(item.key, item.value) for item in error.trailing_metadata() or ()]
