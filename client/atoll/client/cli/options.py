"""Options that every command has that takes part in a federation: an edge client's, and a silo's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from atoll.client.run import default_state

Command = TypeVar("Command", bound=Callable[..., Any])


class Pair(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        key, equals, text = str(value).partition("=")
        if not key.strip() or not equals:
            self.fail(f"{value!r}: expected NAME=VALUE", param, ctx)
        return key.strip(), text


def token_option(*, required: bool = False) -> Callable[[Command], Command]:
    """``--join``, as ``token``: for ``read_token``."""
    return click.option(
        "--join",
        "token",
        envvar="ATOLL_JOIN_TOKEN",
        default=None if required else "",
        required=required,
        metavar="TOKEN|@FILE",
        help=f"Join token{'' if required else ', for the first start'}; @FILE or $ATOLL_JOIN_TOKEN keep it out of the "
        "process list.",
    )


def state_option(text: str) -> Callable[[Command], Command]:
    """``--state``; ``text`` says what lies there."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state,
        show_default="~/.local/state/atoll/client",
        help=text,
    )


def access_options(command: Command) -> Command:
    """How to reach the server (see ``Access``), what to accept of it, and what to say of oneself.

    They are ``--server``, ``--insecure``, ``--participant``, ``--policy`` and ``--label``, the last as ``labels``.
    """
    for option in reversed(_ACCESS):
        command = option(command)
    return command


_ACCESS = (
    click.option("--server", default="", metavar="HOST:PORT", help="Another address than the identity's."),
    click.option("--insecure", is_flag=True, help="No TLS; loopback only, with --server and --participant."),
    click.option("--participant", default="", metavar="NAME", help="Who to be without TLS."),
    click.option(
        "--policy", type=click.Path(path_type=Path, dir_okay=False), help="The participant's own rules, TOML."
    ),
    click.option(
        "--label", "labels", type=Pair(), multiple=True, help="Label that the operator sees; may be repeated."
    ),
)
