"""``atoll silo enrol``: get an identity for a silo before its machines join."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from atoll.client import Access
from atoll.client.silo import IDENTITY_FILE, load_identity, locked, read_token, state_option, token_option
from atoll.datacenter.cli.output import json_option, print_json


@click.command()
@token_option(required=True)
@state_option("The silo's own directory, on a disk that all of its machines share.")
@json_option
def enrol(*, token: str, state: Path, json_output: bool) -> None:
    """Exchange a join token for an identity in --state; ``atoll silo join`` then needs no token.

    For silos of several machines, which would all use the same token. An existing identity is kept.
    """
    with locked(state):
        kept = load_identity(state) is not None
        endpoint = Access(read_token(token), state).endpoint()
    identity = endpoint.identity
    if identity is None:
        raise click.ClickException("the server has issued no identity")
    known = {name: value for name, value in asdict(identity).items() if not name.endswith("_pem")}
    until = identity.validity[1]
    if json_output:
        print_json({**known, "valid_until": until.timestamp(), "state": str(state)})
        return
    click.echo(
        f"{identity.participant} of {identity.organisation}, a {identity.kind}, at {identity.server_address}; "
        f"certificate until {until:%Y-%m-%d %H:%M} UTC, renewed automatically; kept in {state}"
    )
    if kept:
        click.echo(
            f"it already existed, and the token was not used: for a new identity remove {state / IDENTITY_FILE} first"
        )
