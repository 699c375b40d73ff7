"""The connection options that all operator commands share: the server and the credential."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc

from atoll.server.cli.client import ControlClient
from atoll.server.cli.errors import BadInputError, NotPermittedError
from atoll.server.config import DEFAULT_DATA
from atoll.server.identity import OPERATOR_FILE, CredentialError, OperatorCredential
from atoll.wire.loopback import INSECURE_OPERATOR, is_loopback

DEFAULT_ADDRESS = "127.0.0.1:7400"
_OPTION_NAMES = ("server", "credentials", "data", "insecure")
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

R = TypeVar("R")

server_option = click.option(
    "--server", metavar="HOST:PORT", envvar="ATOLL_SERVER", help="Default: the address in the credential."
)
credentials_option = click.option(
    "--credentials",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ATOLL_CREDENTIALS",
    help="Operator credential. Default: operator.json in the data directory, or in ~/.config/atoll.",
)
data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="ATOLL_DATA",
    default=DEFAULT_DATA,
    show_default=True,
    help="The server's data directory, on this machine; the server may be running.",
)
"""For commands that read the data directory themselves."""


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
            raise BadInputError(f"server {self.address!r}: expected HOST:PORT")
        if self.credential is None and not is_loopback(host):
            raise BadInputError(
                f"server {self.address!r} is not on this machine: --insecure is for loopback only",
                "leave --insecure out and give --credentials FILE",
            )

    def open(self) -> grpc.Channel:
        """A channel to the server."""
        if self.credential is None:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            self.credential.ca_certificate.encode(), self.credential.key.encode(), self.credential.certificate.encode()
        )
        return grpc.secure_channel(self.address, credentials, options=_OPTIONS)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        return ((INSECURE_OPERATOR, "1"),) if self.credential is None else ()


def find_target(server: str | None, credentials: Path | None, data: Path | None, *, insecure: bool) -> Target:
    """The server and credential that the options name.

    Raises:
        BadInputError: for an invalid address.
        NotPermittedError: if no operator credential is found, or it cannot be used.
    """
    if insecure:
        return Target(server or DEFAULT_ADDRESS, None)
    path = credentials or _find_credential(data)
    try:
        found = OperatorCredential.read(path)
    except CredentialError as error:
        raise NotPermittedError(str(error), error.detail.remedy) from error
    return Target(server or found.address, found)


@dataclass(frozen=True)
class ConnectionOptions:
    """The values of the connection options."""

    server: str | None
    credentials: Path | None
    data: Path | None
    insecure: bool

    @contextmanager
    def connect(self) -> Iterator[ControlClient]:
        """A client for the server. Raises as ``find_target``."""
        target = find_target(self.server, self.credentials, self.data, insecure=self.insecure)
        with ControlClient(target.open(), target.address, target.metadata) as client:
            yield client


def connection_options(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the connection options and, as its first argument, their values."""

    @server_option
    @credentials_option
    @click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="ATOLL_DATA",
        help="The server's data directory, if it is on this machine.",
    )
    @click.option("--insecure", is_flag=True, help="Plaintext, for a server on this machine started with --insecure.")
    @functools.wraps(function)
    def command(**options: Any) -> R:
        return function(ConnectionOptions(*(options.pop(name) for name in _OPTION_NAMES)), **options)

    return command


def connected(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the connection options and, as its first argument, a client for the server they name."""

    @functools.wraps(function)
    def command(connection: ConnectionOptions, **options: Any) -> R:
        with connection.connect() as client:
            return function(client, **options)

    return connection_options(command)


def _find_credential(data: Path | None) -> Path:
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    places = [directory / OPERATOR_FILE for directory in (data, config / "atoll") if directory is not None]
    for place in places:
        if place.exists():
            return place
    looked = " and ".join(str(place) for place in places)
    raise NotPermittedError(
        f"no operator credential: looked for {looked}",
        "the server writes operator.json into its data directory: give --data DIR or --credentials FILE",
    )
