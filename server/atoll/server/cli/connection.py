"""The connection options that all operator commands share: the server and the credential."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from atoll.operator import Operator
from atoll.server.config import DEFAULT_DATA

_OPTION_NAMES = ("server", "credentials", "data", "insecure", "project")

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
    help="The server's data directory, for commands on its machine.",
)
"""The rule for every command: ``--data``, else ``$ATOLL_DATA``, else ``./atoll-data``."""

project_option = click.option(
    "--project",
    metavar="PROJECT",
    envvar="ATOLL_PROJECT",
    help="The project of the command. Default: the choice of `atoll project use`, or all your projects.",
)


@dataclass(frozen=True)
class ConnectionOptions:
    """The values of the connection options."""

    server: str | None
    credentials: Path | None
    data: Path
    insecure: bool
    project: str | None

    def connect(self) -> Operator:
        """Connect to the server. Raises what ``Operator.connect`` raises."""
        return Operator.connect(
            self.server,
            credential=self.credentials,
            data=self.data,
            insecure=self.insecure,
            project=self.project,
        )


def connection_options(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the connection options and, as its first argument, their values."""

    @server_option
    @credentials_option
    @data_option
    @click.option(
        "--insecure",
        is_flag=True,
        help="Connect in plaintext to a server on this machine that was started with --insecure.",
    )
    @project_option
    @functools.wraps(function)
    def command(**options: Any) -> R:
        return function(ConnectionOptions(*(options.pop(name) for name in _OPTION_NAMES)), **options)

    return command


def connected(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the connection options and, as its first argument, a connection to the server they name."""

    @functools.wraps(function)
    def command(connection: ConnectionOptions, **options: Any) -> R:
        with connection.connect() as client:
            return function(client, **options)

    return connection_options(command)
