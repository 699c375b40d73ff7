"""``atoll participants``: the enrolled participants."""

from __future__ import annotations

import click

from atoll.operator import Operator
from atoll.server.cli.completion import complete_participants
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Group
from atoll.server.cli.output import json_option, print_json, print_listed, styled, when
from atoll.server.control import ParticipantSummary


@click.group(cls=Group)
def participants() -> None:
    """List and revoke participants."""


@participants.command("list")
@click.option("--connected", "connected_only", is_flag=True, help="Only connected participants.")
@click.option("--organisation", default="", help="Only participants of this organisation.")
@json_option
@connected
def list_participants(client: Operator, *, connected_only: bool, organisation: str, json_output: bool) -> None:
    """List the enrolled participants."""
    found = tuple(client.participants(connected=connected_only, organisation=organisation))
    if json_output:
        print_json(found)
        return
    print_listed(
        ("participant", "organisation", "kind", "state", "examples>", "selected>", "reported>", "last seen", "labels"),
        (
            (
                item.participant,
                item.organisation,
                item.kind,
                styled(_state(item)),
                f"{item.examples:,}",
                item.times_selected,
                item.times_reported,
                when(item.last_seen_at),
                ", ".join(f"{name}={value}" for name, value in sorted(item.labels.items())),
            )
            for item in found
        ),
        [item.project for item in found],
        _nobody(connected_only=connected_only, organisation=organisation),
    )


@participants.command()
@click.argument("participant", shell_complete=complete_participants)
@click.option("--reason", default="", help="Reason, which is recorded and shown to the participant.")
@json_option
@connected
def revoke(client: Operator, *, participant: str, reason: str, json_output: bool) -> None:
    """Revoke PARTICIPANT permanently, and end its open streams.

    PARTICIPANT is its id, or its organisation or a label (`site=ward-7`) that no other participant has.
    """
    found = client.revoke(client.participant_named(participant), reason)
    if json_output:
        print_json(found)
    else:
        click.echo(f"{found.participant} ({found.organisation}) is revoked; a new join token would let it back in")


def _nobody(*, connected_only: bool, organisation: str) -> str:
    of = f" of organisation {organisation}" if organisation else ""
    if connected_only:
        return f"no participant{of} is connected"
    return f"no participant{of} has enrolled; `atoll token new` makes a join token"


def _state(item: ParticipantSummary) -> str:
    if item.revoked_at is not None:
        return "revoked"
    return "connected" if item.connected else "away"
