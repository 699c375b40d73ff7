"""``atoll operator login`` and ``logout``: signing in through an OpenID Connect provider."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from atoll.operator import Operator
from atoll.operator.calls import Timeouts
from atoll.operator.connecting import Session, Target
from atoll.operator.errors import BadInputError
from atoll.operator.sign_in import SIGN_IN_FILE, SignIn, config_folder
from atoll.server.cli.errors import Command
from atoll.server.cli.output import json_option, print_json, when

_CA = "The server's authority: ca/authority.crt of its data directory. Default: that of the last sign-in."


def _file() -> Path:
    return config_folder() / SIGN_IN_FILE


@click.command(cls=Command)
@click.option(
    "--server", metavar="HOST:PORT", help="The port for operators who sign in. Default: that of the last sign-in."
)
@click.option("--ca", type=click.Path(dir_okay=False, path_type=Path), help=_CA)
@click.option("--device", is_flag=True, help="Sign in on another device, for a machine without a browser.")
@json_option
def login(*, server: str | None, ca: Path | None, device: bool, json_output: bool) -> None:
    """Sign in through the server's provider; later commands then need no credential."""
    from atoll.operator import signing_in  # noqa: PLC0415 - the HTTP server; other commands of the group need none

    path = _file()
    last = SignIn.read(path) if path.exists() and not (server and ca) else None
    if last is None and not (server and ca):
        raise BadInputError("give --server HOST:PORT and --ca FILE", "the administrator of the server has both")
    authority = last.ca_certificate if ca is None and last else signing_in.certificate_file(ca or Path())
    place = signing_in.ask_server(server or (last.address if last else ""), authority)
    found = signing_in.by_device(place, _print_instruction) if device else signing_in.by_browser(place, _open)
    found.keep(path)
    with Operator(Target(found.address, Session(path)), Timeouts()) as client:
        who = client.whoami()
    if json_output:
        print_json({"name": who.name, "role": who.role, "server": found.address, "expires_at": found.expires_at})
        return
    renewed = "it is renewed automatically" if found.refresh_token else "sign in again then"
    click.echo(f"signed in to {found.address} as {who.name}, {who.role.replace('_', ' ')}")
    click.echo(f"the token ends at {when(found.expires_at)}; {renewed}")


@click.command(cls=Command)
@json_option
def logout(*, json_output: bool) -> None:
    """Forget the sign-in, and tell the provider that its tokens are no longer needed."""
    from atoll.operator import signing_in  # noqa: PLC0415 - as above

    path = _file()
    there = path.exists()
    revoked = signing_in.forget(path) if there else False
    if json_output:
        print_json({"signed_out": there, "revoked": revoked})
    elif not there:
        click.echo("you are not signed in")
    else:
        words = "the provider has revoked its tokens" if revoked else "the provider does not revoke tokens; they expire"
        click.echo(f"signed out; {words}")


def _print_instruction(words: str) -> None:
    click.echo(words, err=True)


def _open(address: str) -> None:
    """Open the browser, and show the address in case it does not open."""
    click.echo(f"if no browser opens, open {address}\nor stop this and use --device", err=True)
    webbrowser.open(address)
