"""The aggregator's credential: its identity towards the server, in one private file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import grpc

from atoll.server.errors import SetupError
from atoll.server.identity import Peer
from atoll.server.identity.files import PRIVATE_MODE, read_private, write_atomic

CREDENTIAL_FILE = "aggregator.json"
_FORMAT = "atoll aggregator 1"
_REMEDY = "enrol again in an empty directory: --token with a new join token of kind aggregator"


@dataclass(frozen=True)
class Credential:
    """Certificates and key as PEM text; the server's addresses as host:port.

    Attributes:
        name: the aggregator's id.
        organisation: the organisation that it was enrolled for.
        address: the server's main port.
        enrolment_address: the server's enrolment port.
        ca_certificate: the federation's authority certificate.
        certificate: this aggregator's certificate.
        key: the certificate's private key.
    """

    name: str
    organisation: str
    address: str
    enrolment_address: str
    ca_certificate: str
    certificate: str
    key: str = field(repr=False)

    @property
    def peer(self) -> Peer:
        """The identity in the certificate.

        Raises:
            PeerError: if the certificate cannot be read.
        """
        return Peer.from_pem(self.certificate.encode())

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Mutual TLS with the server."""
        return grpc.ssl_channel_credentials(self.ca_certificate.encode(), self.key.encode(), self.certificate.encode())

    def write(self, folder: Path) -> None:
        """Write the file atomically, with mode 0600.

        Raises:
            SetupError: if it cannot be written.
        """
        path = folder / CREDENTIAL_FILE
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"
        try:
            write_atomic(path, text.encode(), mode=PRIVATE_MODE)
        except OSError as error:
            message = f"the credential cannot be written: {error.strerror}"
            raise SetupError("aggregator.credential", message, "choose another directory with --data") from error

    @classmethod
    def read(cls, folder: Path) -> Credential | None:
        """Read the file; None if there is none.

        Raises:
            SetupError: if other users may read it, or it is not an aggregator's credential.
        """
        path = folder / CREDENTIAL_FILE
        try:
            values = json.loads(read_private(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise SetupError("aggregator.credential", f"the credential cannot be read: {error}", _REMEDY) from error
        names = {item.name for item in fields(cls)}
        if not isinstance(values, dict) or values.pop("format", None) != _FORMAT or values.keys() != names:
            raise SetupError(
                "aggregator.credential", f"{path} is not a credential of this version ({_FORMAT!r})", _REMEDY
            )
        return cls(**{name: str(value) for name, value in values.items()})
