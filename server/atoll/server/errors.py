"""Errors of the server, each with a stable code, the party at fault, and the remedy.

::

    ServerError
    ├── CallerError            the caller's request must not be repeated unchanged
    │   ├── InvalidRequestError     a value is out of bounds or does not fit
    │   ├── NotFoundError           a run, round, blob or participant that does not exist
    │   ├── ConflictError           something else is already recorded under the same key
    │   ├── UnauthenticatedError    no certificate, or an invalid one
    │   ├── ForbiddenError          the certificate is valid, but not for this call
    │   └── LimitExceededError      more bytes, streams or messages than allowed
    ├── TooLateError                no party's fault: the round moved on
    ├── UnavailableError            the server is starting, stopping or overloaded; try again
    ├── StorageError                disk or database failed; nothing was acknowledged
    │   └── StorageFullError        the disk is full; waiting work continues once there is room
    ├── CorruptDataError            bytes on disk do not match their digest
    └── SetupError                  the server cannot start with these settings

The RPC shell turns each into a gRPC status with an ``ErrorDetail`` (``rpc/errors.py``).
"""

from __future__ import annotations

from typing import ClassVar

from atoll.wire.status import ErrorDetail, Fault, Recovery


class LogText(str):
    """Text of an error for the log, together with the error's ``code``.

    Attributes:
        code: the error's.
        travels: the text without places on this machine, for remote operators.
    """

    __slots__ = ("code", "travels")
    code: str
    travels: str

    def __new__(cls, text: str, code: str, travels: str) -> LogText:
        """Make the text with its error's code, and the part that may leave this machine."""
        made = super().__new__(cls, text)
        made.code, made.travels = code, travels
        return made


class ServerError(Exception):
    """The server refuses a request or cannot do it.

    Args:
        code: stable, machine readable, ``area.what``; listed in docs/protocol.md.
        message: what happened, with the values. It is also sent to participants, so it must not have a path of this
            machine.
        remedy: what the caller or operator should do next.
        retry_after_s: seconds after which the same call may work; None if it will not.
        recovery: what the caller can do; by default that of the class, or a retry if there is ``retry_after_s``.
        where: the file or database concerned; shown in the log and to operators on this machine, but never in
            ``detail``, which leaves it.
    """

    fault: ClassVar[Fault] = Fault.SERVER
    recovery: ClassVar[Recovery] = Recovery.UNSPECIFIED
    """What the caller can do about errors of this class; if unspecified, the fault decides."""

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
        """Place, message and remedy, for logs and for operators on this machine."""
        said = str(self.detail)
        return LogText(f"{self.where}: {said}" if self.where else said, self.detail.code, said)


class CallerError(ServerError):
    """The caller's request must not be repeated unchanged."""

    fault = Fault.CALLER


class InvalidRequestError(CallerError):
    """A value is out of bounds or does not fit."""


class NotFoundError(CallerError):
    """A run, round, blob or participant that does not exist."""


class ConflictError(CallerError):
    """Something else is already recorded under the same key, or the state does not allow it."""


class UnauthenticatedError(CallerError):
    """No certificate, or an invalid one."""

    recovery = Recovery.ENROL


class ForbiddenError(CallerError):
    """The certificate is valid, but not for this call."""

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
    """The disk is full; waiting work continues once there is room."""


class CorruptDataError(ServerError):
    """Bytes on disk do not match their digest."""

    recovery = Recovery.NEXT_TASK


class SetupError(ServerError):
    """The server cannot start with these settings: for example, a port is taken or a process does not start."""
