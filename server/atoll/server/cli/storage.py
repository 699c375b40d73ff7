"""``atoll server storage`` and ``atoll server prune``: show and reduce a server's disk usage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.operator import Operator
from atoll.operator.errors import UnreachableError
from atoll.server.cli.connection import connected, data_option
from atoll.server.cli.errors import Command, local_errors
from atoll.server.cli.output import json_option, print_json, print_table
from atoll.text.figures import in_bytes

if TYPE_CHECKING:
    from atoll.server.stores.usage import Held

_NEEDS_SERVER = "only a running server prunes, and one does at its start: start it with `atoll server start`"


@click.command(cls=Command)
@data_option
@json_option
def storage(*, data: Path, json_output: bool) -> None:
    """Show the disk usage of a data directory by kind and run, and the disk's free space."""
    from atoll.server.stores.usage import storage_use  # noqa: PLC0415  # imports SQLAlchemy: half a second

    with local_errors():
        found = storage_use(data)
    if json_output:
        held = [
            {
                "kind": one.kind,
                "run": one.run,
                "count": one.count,
                "stored_bytes": one.stored_bytes,
                "in_database": one.in_database,
                "elsewhere": one.elsewhere,
            }
            for one in found.held
        ]
        print_json({"held": held, "stored_bytes": found.stored_bytes, "free_bytes": found.free_bytes})
        return
    print_table(
        ("kind", "run", "count>", "size>", ""),
        (
            (
                one.kind,
                one.run,
                f"{one.count:,}",
                in_bytes(one.stored_bytes),
                _place(one),
            )
            for one in found.held
        ),
        "nothing",
    )
    click.echo(f"{in_bytes(found.stored_bytes)} in all, {in_bytes(found.free_bytes)} free")


def _place(one: Held) -> str:
    if one.elsewhere:
        return "on the database server" if one.kind == "database" else "in the bucket"
    return "in the database" if one.in_database else ""


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Only list the items that would be removed.")
@json_option
@connected
def prune(client: Operator, *, dry_run: bool, json_output: bool) -> None:
    """Make a running server remove unneeded files and rows now, which it also does at intervals."""
    try:
        found = client.prune(dry_run=dry_run)
    except UnreachableError as error:
        raise UnreachableError(error.message, f"{_NEEDS_SERVER}; {error.remedy}") from error
    if json_output:
        print_json(found)
        return
    print_table(
        ("kind", "run", "count>", "size>"),
        ((one.kind, one.run, f"{one.count:,}", in_bytes(one.stored_bytes)) for one in found),
        "nothing to remove",
    )
    if found:
        done = "would be removed" if dry_run else "removed"
        click.echo(f"{in_bytes(sum(one.stored_bytes for one in found))} {done}")
