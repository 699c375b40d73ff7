"""An operator's credential: one file with the server's address, the trusted authority, and the operator's identity."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from atoll.server.identity.errors import CredentialError
from atoll.server.identity.files import PRIVATE_MODE, read_private, write_atomic

OPERATOR_FILE = "operator.json"
"""Name of the credential file in the server's data directory and in ``~/.config/atoll``."""
_FORMAT = "atoll operator 1"


@dataclass(frozen=True)
class OperatorCredential:
    """The credential of an operator's commands: certificates and key as PEM text; ``address`` is host:port."""

    name: str
    address: str
    ca_certificate: str
    certificate: str
    key: str = field(repr=False)

    def write(self, path: Path) -> None:
        """Write the file atomically, with mode 0600.

        Raises:
            CredentialError: if it cannot be written.
        """
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"
        try:
            write_atomic(path, text.encode(), mode=PRIVATE_MODE)
        except OSError as error:
            raise CredentialError(f"the operator credential {path} cannot be written: {error}") from error

    @classmethod
    def read(cls, path: Path) -> OperatorCredential:
        """Read the file.

        Raises:
            CredentialError: if it is missing, may be read by others, or is not an operator credential.
        """
        try:
            values = json.loads(read_private(path))
        except OSError as error:
            raise CredentialError(f"the operator credential cannot be read: {error}") from error
        except (ValueError, RecursionError) as error:
            raise CredentialError(f"{path} is not an operator credential: {error}") from None
        if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
            raise CredentialError(f"{path} is not an operator credential of this version ({_FORMAT!r})")
        names = {item.name for item in fields(cls)}
        if values.keys() != names or not all(isinstance(value, str) for value in values.values()):
            raise CredentialError(f"{path}: an operator credential has exactly the texts {', '.join(sorted(names))}")
        return cls(**values)
