"""Errors of the server, each with a stable code, whose fault it was, and what to do next.

::

    ServerError
    ├── CallerError            the caller sent something that it should not send again unchanged
    │   ├── InvalidRequestError     a value is out of bounds or does not fit
    │   ├── NotFoundError           a run, round, blob or participant that does not exist
    │   ├── ConflictError           something else is already recorded under the same key
    │   ├── UnauthenticatedError    no certificate, or one that is not in force
    │   ├── ForbiddenError          the certificate is good, but not for this
    │   └── LimitExceededError      more bytes, streams or messages than allowed
    ├── TooLateError                no party's fault: the round moved on
    ├── UnavailableError            the server is starting, stopping or overloaded; try again
    ├── StorageError                disk or database failed; nothing was acknowledged
    │   └── StorageFullError        there is no room: what waits goes on once there is
    ├── CorruptDataError            bytes on disk do not match their digest
    └── SetupError                  the server cannot start with these settings

The RPC shell turns each into a gRPC status with an ``ErrorDetail`` (``rpc/errors.py``).
"""

from __future__ import annotations

from typing import ClassVar

from atoll.wire.status import ErrorDetail, Fault, Recovery


class LogText(str):
    """Text of an error for the log, which carries the error's ``code`` beside the line.

    Attributes:
        code: the error's.
        travels: the text without the place on this machine, for operators elsewhere.
    """

    __slots__ = ("code", "travels")
    code: str
    travels: str

    def __new__(cls, text: str, code: str, travels: str) -> LogText:
        """Text with its error's code, and what of it may leave this machine."""
        made = super().__new__(cls, text)
        made.code, made.travels = code, travels
        return made


class ServerError(Exception):
    """Something the server refuses or cannot do.

    Args:
        code: stable, machine readable, ``area.what``; listed in docs/protocol.md.
        message: what happened, with the values. It travels, also to participants: never a path of this machine.
        remedy: what to do next.
        retry_after_s: seconds after which the same call may work; None if it will not.
        recovery: what the caller can do; by default what its class says, a repetition if there is ``retry_after_s``.
        where: file or database that it is about; stands in the log and before operators on this machine, never in
            ``detail``, which travels.
    """

    fault: ClassVar[Fault] = Fault.SERVER
    recovery: ClassVar[Recovery] = Recovery.UNSPECIFIED
    """What the caller can do about errors of this class; unspecified goes by the fault."""

    def __init__(
        self,
        code: str,
        message: str,
        remedy: str = "",
        retry_after_s: float | None = None,
        *,
        where: object = "",
        recovery: Recovery | None = None,
    ) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = str(where)
        usual = self.recovery if retry_after_s is None else Recovery.UNSPECIFIED
        self.detail = ErrorDetail(
            code, self.fault, message, remedy, retry_after_s, usual if recovery is None else recovery
        )

    @property
    def logged(self) -> LogText:
        """Place, message and remedy: for logs, and for operators on this machine."""
        said = str(self.detail)
        return LogText(f"{self.where}: {said}" if self.where else said, self.detail.code, said)


class CallerError(ServerError):
    """The caller sent something that it should not send again unchanged."""

    fault = Fault.CALLER


class InvalidRequestError(CallerError):
    """A value is out of bounds or does not fit."""


class NotFoundError(CallerError):
    """A run, round, blob or participant that does not exist."""


class ConflictError(CallerError):
    """Something else is already recorded under the same key, or the state does not allow it."""


class UnauthenticatedError(CallerError):
    """No certificate, or one that is not in force."""

    recovery = Recovery.ENROL


class ForbiddenError(CallerError):
    """The certificate is good, but not for this."""

    recovery = Recovery.NEXT_TASK


class LimitExceededError(CallerError):
    """More bytes, streams or messages than allowed."""


class TooLateError(ServerError):
    """No party's fault: the round moved on."""

    fault = Fault.TIMING


class UnavailableError(ServerError):
    """The server is starting, stopping or overloaded; try again."""


class StorageError(ServerError):
    """Disk or database failed; nothing was acknowledged."""


class StorageFullError(StorageError):
    """There is no room: what waits goes on once there is."""


class CorruptDataError(ServerError):
    """Bytes on disk do not match their digest."""

    recovery = Recovery.NEXT_TASK


class SetupError(ServerError):
    """The server cannot start where and how it was told to: a port is taken, a process does not come up."""
