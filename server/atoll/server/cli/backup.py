"""``atoll server backup``, ``restore`` and ``standby``: copies of the data directory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.server.cli.connection import data_option
from atoll.server.cli.errors import Command, local_errors
from atoll.server.cli.output import json_option, print_json, print_table, styled, when
from atoll.text.figures import counted, in_bytes

if TYPE_CHECKING:
    from atoll.server.backup import Manifest


LEDGER_COLUMNS = ("population", "charges>", "last charged", "head")
_COMPARE = (
    "Releases of private runs since {made} are missing from the restored ledger. Before the server is started, compare "
    "each head with the one noted last, or with an export: `atoll privacy ledger --offline --data {data}`, `atoll "
    "privacy verify FILE.jsonl --head POPULATION=HEAD`. Lower the limit by what is missing, then `atoll run resume` "
    "the runs: until then they pause."
)


@dataclass(frozen=True)
class RestoredLedger:
    """The end of a population's ledger: number of charges, epoch second and digest of the last one, and the flaw."""

    population: str
    charges: int
    last_charged_at: float | None
    head: str
    flaw: str


@click.command(cls=Command)
@click.argument("destination", type=click.Path(path_type=Path))
@data_option
@click.option("--copy", is_flag=True, help="Copy models even where they could be hard-linked.")
@json_option
def backup(*, destination: Path, data: Path, copy: bool, json_output: bool) -> None:
    """Write a backup of the data directory to DESTINATION, a folder that does not exist yet.

    It holds the authority's private key: keep it where only the server's account can read.
    """
    from atoll.server.backup import back_up  # noqa: PLC0415  # imports SQLAlchemy: half a second

    with local_errors():
        manifest = back_up(data, destination, now=time.time(), copy=copy)
    _show(manifest, json_output=json_output)
    if not json_output:
        click.echo(f"{in_bytes(manifest.stored_bytes)} in {destination}; it holds the authority's key: keep it private")


@click.command(cls=Command)
@click.argument("source", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    envvar="ATOLL_DATA",
    help="The data directory to create; it must not exist or must be empty.",
)
@json_option
def restore(*, source: Path, data: Path, json_output: bool) -> None:
    """Restore a data directory from the backup SOURCE; everything is verified before anything is written."""
    from atoll.server.backup import restore as make  # noqa: PLC0415  # as above

    with local_errors():
        restored = make(source, data, now=time.time())
    ledgers = _ledgers(data, restored.manifest)
    if json_output:
        print_json({**restored.manifest.model_dump(mode="json"), "ledgers": ledgers})
        return
    _show(restored.manifest, json_output=False)
    made = when(restored.manifest.made_at)
    click.echo(
        f"{data} stands as of {made}; rounds that were open then are tried again. Revocations since are forgotten: "
        "revoke those participants and operators again before others can reach the server."
    )
    if ledgers:
        print_table(LEDGER_COLUMNS, map(_ledger_row, ledgers), "")
        click.echo(_COMPARE.format(made=made, data=data))


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@data_option
@json_option
def standby(*, folder: Path, data: Path, json_output: bool) -> None:
    """Create FOLDER as the data directory of another server of this federation.

    Copy it to another machine and run `atoll server start --data FOLDER` there: that server stands by, and takes over
    when the active server ends or fails. FOLDER contains the certificate authority's key, so keep it as safe as the
    data directory.
    """
    from atoll.server.backup import make_standby  # noqa: PLC0415  # as above

    with local_errors():
        files = make_standby(data, folder)
    if json_output:
        print_json({"folder": str(folder), "files": [str(path) for path in files]})
        return
    click.echo(f"{counted(len(files), 'file')} copied to {folder}; it holds the key of the certificate authority")
    click.echo(f"bring it to another machine, and run there: atoll server start --data {folder}")


def _ledger_row(item: RestoredLedger) -> tuple[object, ...]:
    return item.population, item.charges, when(item.last_charged_at), item.flaw or item.head


def _ledgers(data: Path, manifest: Manifest) -> list[RestoredLedger]:
    """The end of each population's ledger."""
    from atoll.server.cli.offline import opened  # noqa: PLC0415  # as above
    from atoll.server.stores import schema_version  # noqa: PLC0415  # as above

    if manifest.schema_revision != schema_version.head_revision():
        return []
    with opened(data) as source:
        return [
            RestoredLedger(
                population=found.population,
                charges=found.charges,
                last_charged_at=max((run.last_at for run in found.runs), default=None),
                head=found.head,
                flaw=found.flaw,
            )
            for found in source.populations(verify=True)
        ]


def _show(manifest: Manifest, *, json_output: bool) -> None:
    if json_output:
        print_json(manifest.model_dump(mode="json"))
        return
    print_table(
        ("run", "name", "status", "rounds released>"),
        ((run.run, run.name, styled(run.status), run.rounds_released) for run in manifest.runs),
        "no runs",
    )
