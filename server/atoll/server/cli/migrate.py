"""``atoll server migrate``: moves a data directory's database, or its models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.operator.errors import BadInputError
from atoll.server.cli.connection import data_option
from atoll.server.cli.errors import Command, local_errors
from atoll.server.cli.output import json_option, print_json
from atoll.text.figures import counted, in_bytes

if TYPE_CHECKING:
    from atoll.server.backup import Moved, MovedBlobs

_LINES = 10
"""Number of progress lines for a move of models."""


@click.command(cls=Command)
@data_option
@click.option(
    "--database",
    metavar="URL|sqlite",
    help="Target: an empty PostgreSQL database, such as postgresql://atoll@db.example.org/atoll; or sqlite, in the "
    "data directory.",
)
@click.option(
    "--blobs",
    metavar="URL|directory",
    help="Target: a place in a bucket, such as s3://bucket/prefix; or directory, for the data directory.",
)
@click.option("--blobs-endpoint", default="", help="URL of an S3-compatible service.")
@click.option("--blobs-region", default="", help="Region of an S3 bucket.")
@json_option
def migrate(
    *, data: Path, database: str | None, blobs: str | None, blobs_endpoint: str, blobs_region: str, json_output: bool
) -> None:
    """Move the database or the models of a stopped server; its runs continue at the next start.

    Give --database or --blobs. The old place is not changed, except that an SQLite file is renamed. Keys stay in the
    data directory; uploads of live rounds move with the models.
    """
    if (database is None) == (blobs is None):
        raise BadInputError("name what to move", "--database URL|sqlite, or --blobs URL|directory; one at a time")
    with local_errors():
        moved = (
            _move_database(data, database)
            if database is not None
            else _move_blobs(data, str(blobs), blobs_endpoint, blobs_region)
        )
    if json_output:
        print_json(moved)
    else:
        click.echo(_said(moved))
        if moved.left:
            click.echo(f"{moved.left} is no longer used; remove it when the server has run on the new one")


def _said(moved: Moved | MovedBlobs) -> str:
    from atoll.server.backup import Moved  # noqa: PLC0415  # as below

    way = f"from {moved.source} to {moved.target}"
    if isinstance(moved, Moved):
        return f"{counted(sum(moved.rows.values()), 'row')} copied {way}"
    known = f", {moved.blobs - moved.copied} were there already" if moved.copied < moved.blobs else ""
    return f"{counted(moved.copied, 'model')} copied {way}{known}: {in_bytes(moved.stored_bytes)} in all"


def _move_database(data: Path, database: str) -> Moved:
    from atoll.server.backup import move_database  # noqa: PLC0415  # imports SQLAlchemy: half a second
    from atoll.server.stores.dialects import parse_url  # noqa: PLC0415  # as above

    click.echo(f"copying the database of {data}", err=True)
    return move_database(data, None if database == "sqlite" else parse_url(database))


def _move_blobs(data: Path, blobs: str, endpoint: str, region: str) -> MovedBlobs:
    from atoll.server.backup import move_blobs  # noqa: PLC0415  # imports SQLAlchemy: half a second
    from atoll.server.buckets import parse_place  # noqa: PLC0415  # as above

    def show(done: int, total: int) -> None:
        if done == total or done * _LINES // total != (done - 1) * _LINES // total:
            click.echo(f"{done} of {counted(total, 'model')}", err=True)

    return move_blobs(data, None if blobs == "directory" else parse_place(blobs, endpoint, region), show)
