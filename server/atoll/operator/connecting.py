"""Where the server is and with which credential it is called."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from atoll.operator.errors import BadInputError, NotPermittedError
from atoll.server.identity import OPERATOR_FILE, CredentialError, OperatorCredential
from atoll.wire.loopback import INSECURE_OPERATOR, is_loopback

DEFAULT_ADDRESS = "127.0.0.1:7400"
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


@dataclass(frozen=True)
class Target:
    """A server and the credential for it; without a credential plaintext, to loopback only.

    Raises:
        BadInputError: for an address that is not host:port, or plaintext to another machine.
    """

    address: str
    credential: OperatorCredential | None

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit():
            raise BadInputError(
                f"server {self.address!r}: expected HOST:PORT", "for example --server fl.example.org:7400"
            )
        if self.credential is None and not is_loopback(host):
            raise BadInputError(
                f"server {self.address!r} is not on this machine: --insecure is for loopback only",
                "leave --insecure out and give --credentials FILE",
            )

    def open(self) -> grpc.Channel:
        """A channel to the server."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        return grpc.secure_channel(self.address, credentials, options=_OPTIONS)

    def open_async(self) -> grpc.aio.Channel:
        """A channel to the server for the running event loop."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return grpc.aio.secure_channel(self.address, credentials, options=_OPTIONS)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        return ((INSECURE_OPERATOR, "1"),) if self.credential is None else ()

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self.credential is None:
            return None
        own = self.credential
        return grpc.ssl_channel_credentials(own.ca_certificate.encode(), own.key.encode(), own.certificate.encode())


def find_target(
    server: str | None, credential: OperatorCredential | Path | None, data: Path | None, *, insecure: bool
) -> Target:
    """The server and the credential to use.

    Args:
        server: host:port; None: that of the credential.
        credential: a credential or its file; None: operator.json in ``data``, or in ``~/.config/atoll``.
        data: the server's data directory, if it is on this machine.
        insecure: plaintext, without a credential.

    Raises:
        BadInputError: for an address that cannot be.
        NotPermittedError: if no operator credential is found, or it cannot be used.
    """
    if insecure:
        return Target(server or DEFAULT_ADDRESS, None)
    if not isinstance(credential, OperatorCredential):
        credential = _read(credential or _find_credential(data))
    return Target(server or credential.address, credential)


def _read(path: Path) -> OperatorCredential:
    try:
        return OperatorCredential.read(path)
    except CredentialError as error:
        raise NotPermittedError(str(error), error.detail.remedy) from error


def _find_credential(data: Path | None) -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    places = [directory / OPERATOR_FILE for directory in (data, config / "atoll") if directory is not None]
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(str(place) for place in places)
    raise NotPermittedError(
        f"no operator credential: looked for {looked}",
        "the server writes operator.json into its data directory when it starts: start it, or give its --data DIR or "
        "--credentials FILE",
    )
