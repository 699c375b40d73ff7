"""``atoll token``: join tokens of new participants."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import mkstemp
from typing import Any, TextIO

import click

from atoll.operator import Operator
from atoll.operator.errors import BadInputError
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Group
from atoll.server.cli.output import json_option, print_json, print_listed, when
from atoll.text.figures import counted

MAX_TOKENS = 1000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def lifetime_s(context: click.Context, option: click.Parameter, value: str) -> float:
    """Seconds of a time span such as ``90m``: a number with s, m, h or d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
    if match is None or float(match[1]) <= 0:
        raise click.BadParameter(
            f"{value!r}: allowed is a number above 0 with s, m, h or d, for example 24h", context, option
        )
    return float(match[1]) * _UNITS_S[match[2]]


@click.group(cls=Group)
def token() -> None:
    """Create, list and void join tokens."""


@token.command()
@click.option("--organisation", default="default", show_default=True, help="Organisation of the new participants.")
@click.option("--kind", type=click.Choice(["edge", "silo", "aggregator"]), default="edge", show_default=True)
@click.option(
    "--serves",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="For an aggregator: a host name or IP address that its participants connect to; may be given several times.",
)
@click.option(
    "--through",
    default="",
    metavar="AGGREGATOR",
    help="Id or organisation of the aggregator that the participants connect to, which must be connected.",
)
@click.option(
    "--expires",
    "lifetime_s",
    callback=lifetime_s,
    default="24h",
    show_default=True,
    help="Validity of the tokens: 90m, 24h, 7d.",
)
@click.option("--count", type=click.IntRange(1, MAX_TOKENS), default=1, show_default=True, help="Number of tokens.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write them to a new file (mode 0600), one per line, instead of the terminal.",
)
@json_option
@connected
def new(
    client: Operator,
    *,
    count: int,
    output: Path | None,
    json_output: bool,
    **holder: Any,
) -> None:
    """Create one-time join tokens, each for one enrolment of a participant or aggregator; they are shown only now."""
    with _new_file(output) if output is not None else nullcontext() as file:
        made = client.make_tokens(count, **holder)
        if file is not None:
            file.write("".join(f"{text}\n" for text in made.tokens))
    if output is not None:
        click.echo(f"wrote {counted(count, 'join token')} to {output}, good until {when(made.expires_at)}", err=True)
    elif json_output:
        print_json(made)
    else:
        click.echo("\n".join(made.tokens))
        click.echo(f"good for one enrolment each, until {when(made.expires_at)}", err=True)


@token.command("list")
@click.option("--unused", is_flag=True, help="Only unused join tokens.")
@json_option
@connected
def list_tokens(client: Operator, *, unused: bool, json_output: bool) -> None:
    """List join tokens, without their secrets."""
    tokens = tuple(client.tokens(unused=unused))
    if json_output:
        print_json(tokens)
        return
    print_listed(
        ("token", "organisation", "kind", "made", "made by", "good until", "used by"),
        (
            (
                item.token_id,
                item.organisation,
                item.kind,
                when(item.created_at),
                item.created_by,
                when(item.expires_at),
                item.used_by,
            )
            for item in tokens
        ),
        [item.project for item in tokens],
        "no join tokens; `atoll token new` makes one",
    )


@token.command()
@click.argument("token_ids", metavar="[TOKEN]...", nargs=-1)
@click.option("--made-by", "created_by", default="", metavar="OPERATOR", help="All tokens that this operator has made.")
@json_option
@connected
def void(client: Operator, *, token_ids: tuple[str, ...], created_by: str, json_output: bool) -> None:
    """Void unused join tokens, by the ids that `atoll token list` shows. Enrolled participants are not affected."""
    if bool(token_ids) == bool(created_by):
        raise click.UsageError("name either tokens or --made-by OPERATOR")
    voided = client.void_tokens(token_ids, created_by=created_by)
    if json_output:
        print_json({"voided": voided})
    else:
        click.echo(f"{counted(voided, 'unused join token')} voided")


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """A private file that is named ``path`` once the block has written it; if the block fails, no file is left.

    Its disk space is allocated before the block, since tokens that could not be written would be lost.

    Raises:
        BadInputError: if a file of that name exists, or it cannot be written.
    """
    try:
        _require_new(path)
        descriptor, name = mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        hidden = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _require_new(path)
            hidden.rename(path)
        except BaseException:
            hidden.unlink()
            raise
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from error


def _require_new(path: Path) -> None:
    if path.exists():
        raise BadInputError(f"{path} exists already", "choose a new file: tokens are never written over another")
