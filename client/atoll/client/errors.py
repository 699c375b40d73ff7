"""Errors of the client.

::

    ClientError                     1  (the exit code) every error that the client raises on purpose
    ├── UsageError                  2  bad arguments, files or settings on this side
    │   ├── PolicyError             2  a policy file that is not valid
    │   ├── SettingError            2  a training setting that is missing or of another type
    │   └── StateInUseError         2  another process works in the same state directory
    ├── UnreachableError            3  the server could not be reached for as long as allowed
    ├── NotPermittedError           4  the server does not accept this identity (revoked, expired, unknown)
    ├── BudgetSpentError            1  the participant's own privacy limit does not allow another round
    ├── TrainerError                1  the participant's own code failed or broke the contract
    │   └── UpdateError             1  an update that the server would reject; names tensor and value
    └── RefusedError                1  the server refused one request; says whose fault and what to do
        └── RoundGoneError          1  the round moved on: nothing to repair
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.wire.status import ErrorDetail


class ClientError(Exception):
    """Every error that the client raises on purpose; ``exit_code`` is what the command line ends with."""

    exit_code = 1


class UsageError(ClientError):
    """Bad arguments, files or settings on this side."""

    exit_code = 2


class PolicyError(UsageError):
    """A policy that is not valid; names file, key, value and what is allowed."""


class SettingError(UsageError):
    """A training setting that is missing or of another type."""


class StateInUseError(UsageError):
    """Another process works in the same state directory."""


class UnreachableError(ClientError):
    """The server could not be reached for as long as allowed."""

    exit_code = 3


class NotPermittedError(ClientError):
    """The server does not accept this identity: revoked, expired or unknown."""

    exit_code = 4


class BudgetSpentError(ClientError):
    """The participant's own privacy limit does not allow another round; says what is spent and what it would become."""


class TrainerError(ClientError):
    """The participant's own code failed or broke the contract."""


class UpdateError(TrainerError):
    """An update that the server would reject; names the tensor and the value."""


class RefusedError(ClientError):
    """The server refused one request.

    ``detail`` says whose fault it was and what to do next; None if the server sent no detail.
    """

    def __init__(self, message: str, detail: ErrorDetail | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class RoundGoneError(RefusedError):
    """The round moved on without this participant: nothing to repair."""
