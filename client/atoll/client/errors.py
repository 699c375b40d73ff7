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
    ├── DiskReserveError            1  a download would take room on the disk that the policy keeps free
    ├── TrainerError                1  the participant's own code failed or broke the contract
    │   ├── PublicError             1  raised by the participant's own code: its text is meant for the operator
    │   └── UpdateError             1  an update that the server would reject; names tensor and value
    └── RefusedError                1  the server refused one request; says whose fault and what to do
        └── RoundGoneError          1  the round moved on: nothing to repair
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.wire.status import ErrorDetail


class ClientError(Exception):
    """Every error that the client raises on purpose; ``exit_code`` is what the command line ends with.

    ``text_is_public``: the text is made of the server's words and of settings, never of the participant's data.
    """

    exit_code = 1
    text_is_public = False

    @property
    def public_text(self) -> str:
        """What the server may be told: the type, and the text if that is public."""
        name = type(self).__name__
        return f"{name}: {self}" if self.text_is_public else name


class UsageError(ClientError):
    """Bad arguments, files or settings on this side."""

    exit_code = 2


class PolicyError(UsageError):
    """A policy that is not valid; names file, key, value and what is allowed."""


class SettingError(UsageError):
    """A training setting that is missing or of another type."""

    text_is_public = True


class StateInUseError(UsageError):
    """Another process works in the same state directory."""


class UnreachableError(ClientError):
    """The server could not be reached for as long as allowed."""

    exit_code = 3
    text_is_public = True


class NotPermittedError(ClientError):
    """The server does not accept this identity: revoked, expired or unknown."""

    exit_code = 4
    text_is_public = True


class BudgetSpentError(ClientError):
    """The participant's own privacy limit does not allow another round; says what is spent and what it would become."""

    text_is_public = True


class DiskReserveError(ClientError):
    """A download would take room on the disk that the policy keeps free (``min_free_disk_bytes``)."""

    text_is_public = True


class TrainerError(ClientError):
    """The participant's own code failed or broke the contract.

    ``public`` is what the server may be told of it; empty: the type alone.
    """

    def __init__(self, message: str = "", *, public: str = "") -> None:
        super().__init__(message)
        self._public = public

    @property
    def public_text(self) -> str:
        """See ``ClientError``."""
        return self._public or super().public_text


class PublicError(TrainerError):
    """Raise it in ``fit``, ``evaluate`` or ``step``: its text goes to the operator, word for word.

    The one exception whose text leaves by default, so it must not be made of data.
    """

    @property
    def public_text(self) -> str:
        """The text."""
        return str(self) or type(self).__name__


class UpdateError(TrainerError):
    """An update that the server would reject; names the tensor and the value."""


class RefusedError(ClientError):
    """The server refused one request.

    ``detail`` says whose fault it was and what to do next; None if the server sent no detail.
    """

    text_is_public = True

    def __init__(self, message: str, detail: ErrorDetail | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class RoundGoneError(RefusedError):
    """The round moved on without this participant: nothing to repair."""
