"""``atoll server standby``: creates the data directory of another server."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.server.cli.connection import data_option
from atoll.server.cli.errors import Command, local_errors
from atoll.server.cli.output import json_option, print_json
from atoll.text.figures import counted


@click.command(name="standby", cls=Command)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@data_option
@json_option
def standby(*, folder: Path, data: Path, json_output: bool) -> None:
    """Create FOLDER as the data directory of another server of this federation.

    Copy it to another machine and run `atoll server start --data FOLDER` there: that server stands by, and takes over
    when the active server ends or fails. FOLDER contains the certificate authority's key, so keep it as safe as the
    data directory.
    """
    from atoll.server.backup import make_standby  # noqa: PLC0415  # SQLAlchemy: half a second that others save

    with local_errors():
        files = make_standby(data, folder)
    if json_output:
        print_json({"folder": str(folder), "files": [str(path) for path in files]})
        return
    click.echo(f"{counted(len(files), 'file')} copied to {folder}; it holds the key of the certificate authority")
    click.echo(f"bring it to another machine, and run there: atoll server start --data {folder}")
