"""The server's address and the credential for calls to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio

from atoll.operator.chosen_project import chosen_project
from atoll.operator.errors import BadInputError, NotPermittedError
from atoll.operator.provider import Provider
from atoll.operator.sign_in import SIGN_IN_FILE, SignIn, config_folder, locked
from atoll.server.identity import OPERATOR_FILE, CredentialError, OperatorCredential
from atoll.wire.loopback import INSECURE_OPERATOR, is_loopback
from atoll.wire.project import PROJECT

DEFAULT_ADDRESS = "127.0.0.1:7400"
SIGN_IN_AGAIN = "sign in again: atoll operator login"
_EARLY_S = 60.0
"""A token with less time left, in seconds, is renewed."""
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Session:
    """A sign-in whose token is renewed shortly before it expires. Thread-safe.

    Args:
        path: the file of the sign-in, which each renewal replaces.
        clock: epoch seconds, UTC.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self.sign_in = SignIn.read(path)

    def token(self) -> str:
        """The token for the next call.

        Raises:
            OperatorError: if the sign-in has expired and cannot be renewed.
        """
        with self._lock:
            if self._left_s() < _EARLY_S:
                self._renew()
            return self.sign_in.bearer

    def _left_s(self) -> float:
        return self.sign_in.expires_at - self._clock()

    def _renew(self) -> None:
        with locked(self._path):
            kept = SignIn.read(self._path)  # another process may have renewed it, or signed out
            if (kept.address, kept.issuer) != (self.sign_in.address, self.sign_in.issuer):
                raise NotPermittedError(
                    f"{self._path} is now a sign-in to {kept.address}, whose token is not for {self.sign_in.address}",
                    "begin again, or sign in again: atoll operator login",
                )
            self.sign_in = kept
            if self._left_s() >= _EARLY_S:
                return
            if not self.sign_in.refresh_token:
                if self._left_s() > 0:
                    return
                raise NotPermittedError("the sign-in has ended", SIGN_IN_AGAIN)
            own = self.sign_in
            provider = Provider(own.issuer, own.client_id, own.token, self._clock)
            found = provider.tokens(grant_type="refresh_token", refresh_token=own.refresh_token)
            self.sign_in = replace(
                own, bearer=found.bearer, refresh_token=found.refresh_token, expires_at=found.expires_at
            )
            self.sign_in.write(self._path)


@dataclass(frozen=True)
class Target:
    """A server and its credential; without a credential calls are in plaintext, to loopback only.

    ``project`` is the project of the calls; empty: none.

    Raises:
        BadInputError: for an address that is not host:port, or plaintext to another machine.
    """

    address: str
    credential: OperatorCredential | Session | None
    project: str = ""

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
        """Metadata for the next call; renews a token that is about to expire.

        Raises:
            OperatorError: if the renewal fails.
        """
        project = ((PROJECT, self.project),) if self.project else ()
        if isinstance(self.credential, Session):
            return (("authorization", f"Bearer {self.credential.token()}"), *project)
        return ((INSECURE_OPERATOR, "1"), *project) if self.credential is None else project

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self.credential is None:
            return None
        own = self.credential
        if isinstance(own, Session):
            return grpc.ssl_channel_credentials(own.sign_in.ca_certificate.encode())
        return grpc.ssl_channel_credentials(own.ca_certificate.encode(), own.key.encode(), own.certificate.encode())


def find_target(
    server: str | None,
    credential: OperatorCredential | Path | None,
    data: Path | None,
    *,
    insecure: bool,
    project: str | None = None,
) -> Target:
    """The server and the credential to use.

    Args:
        server: host:port; None: the credential's.
        credential: a credential or its file; None: operator.json in ``data``, or sign-in.json or operator.json in
            ``~/.config/atoll``.
        data: the server's data directory, if it is on this machine.
        insecure: plaintext, without a credential.
        project: of the calls; empty: none; None: the one chosen for this server.

    Raises:
        BadInputError: for an invalid address.
        NotPermittedError: if no operator credential is found or it cannot be used.
    """
    own: OperatorCredential | Session | None = None
    if isinstance(credential, OperatorCredential):
        own = None if insecure else credential
    elif not insecure:
        own = _read(credential or _find_credential(data))
    known = DEFAULT_ADDRESS if own is None else own.sign_in.address if isinstance(own, Session) else own.address
    address = server or known
    return Target(address, own, chosen_project(address) if project is None else project)


def _read(path: Path) -> OperatorCredential | Session:
    if path.name == SIGN_IN_FILE:
        return Session(path)
    try:
        return OperatorCredential.read(path)
    except CredentialError as error:
        raise NotPermittedError(str(error), error.detail.remedy) from error


def _find_credential(data: Path | None) -> Path:
    own = config_folder()
    places = [own / SIGN_IN_FILE, own / OPERATOR_FILE]
    if data is not None:
        places.insert(0, data / OPERATOR_FILE)
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(str(place) for place in places)
    raise NotPermittedError(
        f"no operator credential: looked for {looked}",
        "the server writes operator.json into its data directory when it starts: start it, or give its --data DIR or "
        "--credentials FILE, or sign in: atoll operator login",
    )
