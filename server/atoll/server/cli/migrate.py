"""``atoll server migrate``: moves a data directory's database."""

from __future__ import annotations

from pathlib import Path

import click

from atoll.server.cli.connection import data_option
from atoll.server.cli.errors import Command, local_errors
from atoll.server.cli.output import json_option, print_json
from atoll.text.figures import counted


@click.command(cls=Command)
@data_option
@click.option(
    "--database",
    required=True,
    metavar="URL|sqlite",
    help="Where to: an empty PostgreSQL database, such as postgresql://atoll@db.example.org/atoll; or sqlite, in the "
    "data directory.",
)
@json_option
def migrate(*, data: Path, database: str, json_output: bool) -> None:
    """Move the database of a stopped server; its runs go on at the next start where they stood.

    The old database stays as it is; an SQLite file gets another name. Models, uploads and keys stay in the data
    directory.
    """
    from atoll.server.backup import move_database  # noqa: PLC0415  # SQLAlchemy: half a second that others save
    from atoll.server.stores.dialects import parse_url  # noqa: PLC0415  # as above

    click.echo(f"copying the database of {data}", err=True)
    with local_errors():
        moved = move_database(data, None if database == "sqlite" else parse_url(database))
    if json_output:
        print_json(moved)
        return
    click.echo(f"{counted(sum(moved.rows.values()), 'row')} copied from {moved.source} to {moved.target}")
    click.echo(f"{moved.left} is no longer used; remove it when the server has run on the new one")
