"""``atoll server log``: the newest lines of a running server's log, even on another machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from atoll.operator import Operator
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Command
from atoll.server.cli.output import json_option, print_json, when

if TYPE_CHECKING:
    from atoll.operator import LogLine
    from atoll.operator.operator import LogLevel

_LINES = 50


@click.command(cls=Command)
@click.option("-n", "--lines", type=click.IntRange(1, 1000), default=_LINES, show_default=True, help="Number of lines.")
@click.option(
    "--level",
    type=click.Choice(["info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Minimum severity.",
)
@json_option
@connected
def log(client: Operator, *, lines: int, level: LogLevel, json_output: bool) -> None:
    """Show the newest lines of a running server's log, the newest last."""
    found = sorted(client.log_lines(lines, level=level), key=lambda one: one.number)
    if json_output:
        print_json(found)
        return
    for one in found:
        click.echo(f"{when(one.logged_at)} {one.level.upper():7} {one.logger}: {one.message}{_facts(one)}")
    if not found:
        click.echo("no line is kept")


def _facts(line: LogLine) -> str:
    known = [
        f"{name}={value}"
        for name in ("run", "participant", "operator", "code")
        if (value := getattr(line, name)) and value not in line.message
    ]
    return f" [{' '.join(known)}]" if known else ""
