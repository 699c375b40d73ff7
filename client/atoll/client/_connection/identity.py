"""The participant's identity: a key that never leaves this machine, and a short-lived certificate for it.

Both are in one file, ``<state>/identity.json`` (mode 0600), which is replaced atomically: key and certificate always
belong together, even if power is lost during a renewal.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import grpc

from atoll.client._clock import wall_s
from atoll.client._connection.keys import certificate_of, fingerprint
from atoll.client._state.files import read_private, replace_file
from atoll.client.errors import UsageError

FILE_NAME = "identity.json"


@dataclass(frozen=True)
class Identity:
    """A participant's identity at one federation.

    ``kind`` is "edge" or "silo"; ``server_address`` the main port and ``enrolment_address`` the enrolment port as
    host:port; the rest is PEM text.
    """

    participant: str
    organisation: str
    kind: str
    server_address: str
    certificate_pem: str
    ca_certificate_pem: str
    key_pem: str = field(repr=False)
    enrolment_address: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """TLS with this certificate, trusting only the federation's own CA."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.ca_certificate_pem.encode(),
            private_key=self.key_pem.encode(),
            certificate_chain=self.certificate_pem.encode(),
        )

    @property
    def authority(self) -> str:
        """The SHA-256 fingerprint of the certificate of the federation's own CA."""
        body = self.ca_certificate_pem.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]
        return fingerprint(base64.b64decode(body))

    @property
    def validity(self) -> tuple[datetime, datetime]:
        """Begin and end of the certificate's validity (UTC)."""
        certificate = certificate_of(self.certificate_pem)
        return certificate.not_valid_before_utc, certificate.not_valid_after_utc

    @property
    def lifetime_s(self) -> float:
        """Length of the certificate's validity in seconds."""
        first, last = self.validity
        return (last - first).total_seconds()

    def expired(self) -> bool:
        """Whether the certificate has expired by this machine's clock."""
        return wall_s() >= self.validity[1].timestamp()


def load(state: Path) -> Identity | None:
    """The stored identity; None if there is none.

    Raises:
        UsageError: if the file exists and cannot be read as an identity.
    """
    path = state / FILE_NAME
    text = read_private(path)
    if text is None:
        return None
    try:
        return Identity(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is not an identity ({error}); remove it and enrol with a new join token") from None


def store(state: Path, identity: Identity) -> None:
    """Write the identity atomically, readable only by its owner."""
    replace_file(state / FILE_NAME, json.dumps(asdict(identity), indent=1))
