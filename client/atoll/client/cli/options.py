"""Options of the commands that take part in a federation: those of edge clients and of silos."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from atoll.client.participate import default_state

Command = TypeVar("Command", bound=Callable[..., Any])


_CLAIMED = re.compile(r"p[a-z2-7]{12}")


def _claimed(context: click.Context, option: click.Parameter, value: str) -> str:
    """A participant's id in the server's format, or empty.

    Raises:
        click.BadParameter: for another format, which a server would refuse.
    """
    if value and not _CLAIMED.fullmatch(value):
        raise click.BadParameter(
            f"{value!r}: a participant's id is p and 12 characters a-z, 2-7, such as paaaaaaaaaaaa", context, option
        )
    return value


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
    """``--join``, passed as ``token`` to ``read_token``."""
    return click.option(
        "--join",
        "token",
        envvar="ATOLL_JOIN_TOKEN",
        default=None if required else "",
        required=required,
        metavar="TOKEN|@FILE[:LINE]",
        help=f"Join token{'' if required else ', for the first start'}; @FILE (@FILE:2 for its second line) or "
        "$ATOLL_JOIN_TOKEN keep it out of the process list.",
    )


def state_option(text: str) -> Callable[[Command], Command]:
    """``--state``; ``text`` is its help."""
    return click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_state,
        show_default="~/.local/state/atoll/client",
        help=text,
    )


def access_options(command: Command) -> Command:
    """Add ``--server``, ``--insecure``, ``--participant``, ``--policy`` and ``--label`` (as ``labels``)."""
    for option in reversed(_ACCESS):
        command = option(command)
    return command


_ACCESS = (
    click.option("--server", default="", metavar="HOST:PORT", help="Overrides the address of the identity."),
    click.option("--insecure", is_flag=True, help="No TLS; loopback only, with --server and --participant."),
    click.option(
        "--participant",
        default="",
        metavar="NAME",
        callback=_claimed,
        help="Participant id to claim without TLS: p and 12 characters a-z, 2-7, such as paaaaaaaaaaaa.",
    ),
    click.option(
        "--policy", type=click.Path(path_type=Path, dir_okay=False), help="The participant's own policy, a TOML file."
    ),
    click.option(
        "--label", "labels", type=Pair(), multiple=True, help="Label that the operator sees; may be repeated."
    ),
)
