"""What the server is told of a failure: by default nothing that may have been made from the participant's data.

The text of an exception often quotes data (``could not convert string to float: 'Jane Doe'``). So only its type leaves,
but for errors whose text is known to have no data in it (``ClientError.public_text``). The participant's own log has
the whole.
"""

from __future__ import annotations

from typing import Literal

from atoll.client.errors import ClientError

ErrorDetails = Literal["type", "text"]
"""What of an error leaves: its type, or its text too."""
ERROR_DETAILS: tuple[ErrorDetails, ...] = ("type", "text")
_MAX_TYPE_CHARS = 64


def told(error: BaseException, details: ErrorDetails) -> str:
    """What the server is told of an error."""
    if details == "text":
        return f"{type_of(error)}: {error}"
    return error.public_text if isinstance(error, ClientError) else type_of(error)


def type_of(error: BaseException) -> str:
    """The name of an error's type; a name that no source file could have is not told."""
    name = type(error).__name__
    return name if name.isidentifier() and len(name) <= _MAX_TYPE_CHARS else "an error"


def raised(what: str, error: BaseException) -> tuple[str, str]:
    """That ``what`` raised an error: for the participant's own log, and for the server."""
    public = isinstance(error, ClientError) and error.text_is_public
    text = f"{what} raised {type_of(error)}: {error}"
    return text, text if public else f"{what} raised {type_of(error)} (its text stays in the participant's log)"
