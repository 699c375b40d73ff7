"""``atoll console``: a server's runs in a browser."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click

from atoll.console.serving import serve
from atoll.console.site import DEFAULT_PORT, Listening
from atoll.operator import Operator
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import Command

_file = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0 picks a free one."
)
@click.option("--tls-certificate", type=_file, help="Serve HTTPS with this certificate chain (PEM).")
@click.option("--tls-key", type=_file, help="Its key (PEM).")
@click.option("--plaintext", is_flag=True, help="Plain HTTP even on another address than loopback, for a TLS proxy.")
@click.option("--origin", default="", metavar="URL", help="Address that browsers use, if it is not the one above.")
@click.option("--json", "json_output", is_flag=True, help="Print each link as JSON.")
@connected
def console(
    client: Operator,
    *,
    host: str,
    port: int,
    tls_certificate: Path | None,
    tls_key: Path | None,
    plaintext: bool,
    origin: str,
    json_output: bool,
) -> None:
    """Show runs, rounds and participants in a browser, live; start, pause, extend and cancel runs.

    Prints a link that opens it in one browser. The console is a program of its own beside the server: it calls the
    server as the other commands do, and a browser with a session has the rights of its credential.
    """
    listening = Listening(host, port, tls_certificate, tls_key, plaintext, origin)
    version = client.health().version

    def show(link: str) -> None:
        if json_output:
            click.echo(json.dumps({"link": link, "server": client.address}))
            return
        click.echo(link)
        click.echo(f"opens the console of {client.address}, version {version}, once and within ten minutes", err=True)
        click.echo("Enter shows another link, Ctrl-C stops" if sys.stdin.isatty() else "Ctrl-C stops", err=True)

    asyncio.run(serve(client, listening, show))
