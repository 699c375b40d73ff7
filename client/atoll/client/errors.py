"""Errors of the client, and how much of an error the server gets to see.

::

    ClientError                     1  (the exit code) every error that the client raises on purpose
    ├── UsageError                  2  bad arguments, files or settings on this side
    │   ├── PolicyError             2  a policy file that is not valid
    │   ├── SettingError            2  a training setting that is missing or of another type
    │   └── StateInUseError         2  another process works in the same state directory
    ├── UnreachableError            3  the server was unreachable for too long
    ├── NotPermittedError           4  the server does not accept this identity (revoked, expired, unknown)
    ├── BudgetSpentError            1  the participant's own privacy limit does not allow another round
    ├── DiskReserveError            1  a download would use disk space that the policy keeps free
    ├── TrainerError                1  the participant's own code failed or broke the contract
    │   ├── PublicError             1  raised by the participant's own code: its text is meant for the operator
    │   └── UpdateError             1  an update that the server would reject; names tensor and value
    └── RefusedError                1  the server refused one request; states whose fault it is and what to do
        └── RoundGoneError          1  the round moved on; there is nothing to do

By default the server gets only the type of an error, because the text of an exception often quotes data (``could not
convert string to float: 'Jane Doe'``). The text is sent if it cannot contain data (``ClientError.public_text``), and
always with the policy ``errors = "text"``. The participant's own log has the whole text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from atoll.wire.status import ErrorDetail

ErrorDetails = Literal["type", "text"]
"""How much of an error is sent to the server: its type, or its text too."""
ERROR_DETAILS: tuple[ErrorDetails, ...] = ("type", "text")
_MAX_TYPE_CHARS = 64
_STAYS = "(its text stays in the participant's log)"


class ClientError(Exception):
    """Base of all errors that the client raises on purpose; ``exit_code`` is the exit code of the command line.

    ``text_is_public``: the text consists of the server's words and of settings, never of the participant's data.
    """

    exit_code = 1
    text_is_public = False

    @property
    def public_text(self) -> str:
        """The description for the server: the type, and the text if it is public, or a note where to find it."""
        name = type(self).__name__
        return f"{name}: {self}" if self.text_is_public else f"{name} {_STAYS}"


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
    """The server was unreachable for too long."""

    exit_code = 3
    text_is_public = True


class NotPermittedError(ClientError):
    """The server does not accept this identity: revoked, expired or unknown."""

    exit_code = 4
    text_is_public = True


class BudgetSpentError(ClientError):
    """The participant's own privacy limit does not allow another round; gives the spent budget and the new sum."""

    text_is_public = True


class DiskReserveError(ClientError):
    """A download would use disk space that the policy keeps free (``min_free_disk_bytes``)."""

    text_is_public = True


class TrainerError(ClientError):
    """The participant's own code failed or broke the contract.

    ``public`` is the text that the server may see; empty: the type only.
    """

    def __init__(self, message: str = "", *, public: str = "") -> None:
        super().__init__(message)
        self._public = public

    @property
    def public_text(self) -> str:
        """See ``ClientError``."""
        return self._public or super().public_text


class PublicError(TrainerError):
    """Raise this in ``fit``, ``evaluate`` or ``step`` to send its text to the operator.

    No other exception's text is sent by default, so the text must not contain data.
    """

    @property
    def public_text(self) -> str:
        """The text."""
        return str(self) or type(self).__name__


class UpdateError(TrainerError):
    """An update that the server would reject; names the tensor and the value."""


class RefusedError(ClientError):
    """The server refused one request.

    ``detail`` states whose fault it is and what to do next; None if the server sent no detail.
    """

    text_is_public = True

    def __init__(self, message: str, detail: ErrorDetail | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class RoundGoneError(RefusedError):
    """The round moved on without this participant; there is nothing to do."""


def text_for_server(error: BaseException, details: ErrorDetails) -> str:
    """The description of an error for the server."""
    if details == "text":
        return f"{type_name(error)}: {error}"
    return error.public_text if isinstance(error, ClientError) else f"{type_name(error)} {_STAYS}"


def type_name(error: BaseException) -> str:
    """The name of an error's type; "an error" if the name is not an identifier or is longer than 64 characters."""
    name = type(error).__name__
    return name if name.isidentifier() and len(name) <= _MAX_TYPE_CHARS else "an error"


def trainer_error(what: str, error: BaseException) -> TrainerError:
    """The error to raise after the participant's own code raised one; its text stays here unless it is public.

    Args:
        what: the method that raised: "fit", "evaluate", "step".
        error: what it raised; its notes (PEP 678) are part of its text.
    """
    text = "; ".join((f"{what} raised {type_name(error)}: {error}", *getattr(error, "__notes__", ())))
    public = isinstance(error, ClientError) and error.text_is_public
    hidden = f"{what} raised {type_name(error)} {_STAYS}"
    return TrainerError(text, public=text if public else hidden)
