"""``atoll client``: take part in a federation."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click

from atoll.client._telemetry.logs import configure_logging, same_output
from atoll.client.cli.cores import CoreShare
from atoll.client.cli.locate import make_participant
from atoll.client.cli.options import Pair, access_options, state_option, token_option
from atoll.client.cli.output import HumanLines, JsonLines
from atoll.client.cli.policy_file import read_policy
from atoll.client.events import Observer
from atoll.client.participate import Access, read_token, run
from atoll.processes.heap import keep_chunks

log = logging.getLogger("atoll.client")
_LEVELS = ("debug", "info", "warning", "error")


@click.group()
def client() -> None:
    """Take part in a federation with your own data."""


@client.command()
@click.argument("trainer", metavar="MODULE:CLASS")
@token_option()
@state_option("The participant's own directory: identity, cached models, usage.")
@access_options
@click.option("--arg", "arguments", type=Pair(), multiple=True, help="Argument of CLASS; may be repeated.")
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    show_default="cores / your clients on this machine",
    help="Maximum number of PyTorch's threads.",
)
@click.option("--max-rounds", type=click.IntRange(min=1), help="End after this many tasks.")
@click.option("--once", is_flag=True, help="The same as --max-rounds 1.")
@click.option(
    "--check-in",
    type=click.Choice(["stream", "unary"]),
    default="stream",
    show_default=True,
    help="unary: no connection while there is no task; for phones and other devices in large numbers.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per event on stdout.")
@click.option(
    "--log-level", type=click.Choice(_LEVELS), default="warning", show_default=True, help="Log lines on stderr."
)
@click.option("--json-log", is_flag=True, help="Log one JSON object per line.")
def start(
    trainer: str,
    token: str,
    state: Path,
    policy: Path | None,
    arguments: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    **options: Any,
) -> None:
    """Start a participant: CLASS of MODULE (a file in this directory or an installed package), until Ctrl-C.

    The first start uses the join token to enrol; the identity stays in --state.
    """
    json_lines = options["as_json"] or options["json_log"]
    configure_logging(options["log_level"], as_json=options["json_log"], observed=json_lines or not same_output())
    keep_chunks()
    shown = JsonLines() if options["as_json"] else HumanLines()
    observer = _sharing_cores(shown, options["threads"])
    access = Access(read_token(token), state, options["server"], options["insecure"], options["participant"])
    with shown.during(f"loading {trainer}"):
        participant = make_participant(trainer, dict(arguments))
    shown.say("connecting to the server")
    run(
        participant,
        access,
        policy=read_policy(policy) if policy else None,
        observer=observer,
        labels=dict(labels),
        max_rounds=1 if options["once"] else options["max_rounds"] or 0,
        check_in=options["check_in"],
    )


def _sharing_cores(shown: Observer, threads: int) -> Observer:
    try:
        return CoreShare(shown, threads)
    except OSError as error:
        log.warning("cannot count the clients on this machine, so PyTorch uses its own number of threads: %s", error)
        return shown


@client.command()
@state_option("The participant's directory.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(state: Path, *, as_json: bool) -> None:
    """Show identity, certificate, cached models, and tasks and bytes of the last 24 hours."""
    from atoll.client.cli.status import describe, status_of  # noqa: PLC0415  # loads gRPC and cryptography

    found = status_of(state)
    click.echo(json.dumps(found.as_dict()) if as_json else describe(found))
