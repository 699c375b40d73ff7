"""A sign-in through an OpenID Connect provider, kept in a file that only its owner can read."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from atoll.operator.errors import BadInputError, NotPermittedError
from atoll.server.identity.files import PRIVATE_MODE, read_private, write_atomic

SIGN_IN_FILE = "sign-in.json"
_FORMAT = "atoll sign-in 1"
_AGAIN = "sign in again: atoll operator login --server HOST:PORT --ca FILE"


@dataclass(frozen=True)
class SignIn:
    """An operator's sign-in: server, provider and tokens.

    Attributes:
        address: host:port of the server's port for operators who sign in.
        ca_certificate: PEM, the authority of the server's certificate.
        issuer: the provider.
        client_id: Atoll's client id at the provider.
        token: which token the server accepts, ``id`` or ``access``.
        bearer: that token.
        refresh_token: for the next token; empty if the provider issued none.
        expires_at: expiry of the token, epoch seconds UTC.
    """

    address: str
    ca_certificate: str
    issuer: str
    client_id: str
    token: str
    bearer: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_at: float

    def write(self, path: Path) -> None:
        """Write the file atomically, with mode 0600.

        Raises:
            BadInputError: if it cannot be written.
        """
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text.encode(), mode=PRIVATE_MODE)
        except OSError as error:
            raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error

    def keep(self, path: Path) -> None:
        """As ``write``, but never overwrite a newer sign-in that another process has written."""
        with locked(path):
            self.write(path)

    @classmethod
    def read(cls, path: Path) -> SignIn:
        """Read the file.

        Raises:
            NotPermittedError: if it is missing, readable by others, or contains no sign-in.
        """
        try:
            values = json.loads(read_private(path))
        except OSError as error:
            raise NotPermittedError(f"the sign-in cannot be read: {error}", _AGAIN) from error
        except (ValueError, RecursionError) as error:
            raise NotPermittedError(f"{path} contains no sign-in: {error}", _AGAIN) from None
        if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
            raise NotPermittedError(f"{path} contains no sign-in of this version ({_FORMAT!r})", _AGAIN)
        texts = {one.name for one in fields(cls)} - {"expires_at"}
        expires_at = values.pop("expires_at", None)
        if values.keys() != texts or not all(isinstance(one, str) for one in values.values()):
            raise NotPermittedError(f"{path}: a sign-in has the texts {', '.join(sorted(texts))}", _AGAIN)
        if not isinstance(expires_at, (int, float)):
            raise NotPermittedError(f"{path}: expires_at is not a time", _AGAIN)
        return cls(**values, expires_at=float(expires_at))


def config_folder() -> Path:
    """The folder of this account's credentials."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "atoll"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time change the sign-in in ``path``: many providers accept a refresh token only once.

    Raises:
        BadInputError: if its folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
