"""``atoll privacy ledger`` and ``limit``: the privacy spending of each population, and its limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import click

from atoll.operator import Operator
from atoll.operator.errors import BadInputError, OperatorError
from atoll.operator.ledger import LedgerQueries
from atoll.server.cli import privacy_formats as formats
from atoll.server.cli.connection import ConnectionOptions, connected, connection_options
from atoll.server.cli.errors import Command, writing
from atoll.server.cli.offline import opened
from atoll.server.cli.output import busy, json_option, print_json, print_table
from atoll.server.control import PopulationSummary
from atoll.server.identity.files import write_atomic
from atoll.settings.numbers import Finite
from atoll.text.figures import counted

MAX_ROUNDS = 50
"""Maximum number of a run's rounds per answer."""
_EXPORT_MODE = 0o600
_NO_RUN = ("no run was charged yet", "no charge that can be read is left")
_NOTHING = "nothing was charged yet; only runs with a [privacy] section are charged"


@click.command(cls=Command)
@click.option("--population", metavar="NAME", help="One population, with the spending of each run.")
@click.option("--run", "run_id", metavar="RUN", help="One run, round by round; `latest` for the newest.")
@click.option(
    "--participant", metavar="ID", help="The guarantee for one participant, and the runs that it was drawn for."
)
@click.option(
    "--last",
    type=click.IntRange(1, MAX_ROUNDS),
    default=20,
    show_default=True,
    help="Number of rounds to show with --run.",
)
@click.option(
    "--export",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every charge, of one population or all, to this file of JSON lines; `atoll privacy verify` checks it.",
)
@click.option(
    "--offline", is_flag=True, help="Read the data directory (--data) directly, whether or not a server runs on it."
)
@json_option
@connection_options
def ledger(
    connection: ConnectionOptions,
    *,
    offline: bool,
    population: str | None,
    run_id: str | None,
    participant: str | None,
    last: int,
    export: Path | None,
    json_output: bool,
) -> None:
    """Show each population's privacy spending; exit code 1 if a ledger is damaged.

    The spending is an upper bound on epsilon, at delta, of all releases together. The digest shown as head covers all
    charges so far: note it elsewhere, and no charge can be changed or lost unnoticed.
    """
    if sum(option is not None for option in (population, run_id, participant)) > 1:
        raise BadInputError("--population, --run and --participant exclude one another", "give one of them")
    if export is not None and (run_id or participant):
        raise BadInputError("--export writes whole populations", "leave --run and --participant out")
    with _source(connection, offline=offline) as source:
        if export is not None:
            _export(source, export, population, json_output=json_output)
        elif run_id is not None:
            _show_run(source, source.run_named(run_id), last, json_output=json_output)
        elif participant is not None:
            asked = source.participant_named(participant) if isinstance(source, Operator) else participant
            _show_participant(source, asked, json_output=json_output)
        else:
            _show_populations(source, population, json_output=json_output)


def _source(connection: ConnectionOptions, *, offline: bool) -> AbstractContextManager[LedgerQueries]:
    if not offline:
        return connection.connect()
    return opened(connection.data)


@click.command(cls=Command)
@click.argument("population")
@click.option("--epsilon", type=Finite(0, min_open=True), help="Limit on the total epsilon of its runs ...")
@click.option("--delta", type=Finite(0, 1, min_open=True, max_open=True), help="... at this delta.")
@click.option("--none", "no_limit", is_flag=True, help="Remove the limit.")
@click.option("--create", is_flag=True, help="Create the population if none of its runs has been submitted yet.")
@click.option(
    "--unit",
    type=click.Choice(["participant", "row"]),
    help="With --create: the unit of privacy of its runs (privacy.unit of their jobs).  [default: participant]",
)
@json_option
@connected
def limit(
    client: Operator,
    *,
    population: str,
    epsilon: float | None,
    delta: float | None,
    no_limit: bool,
    create: bool,
    unit: Literal["participant", "row"] | None,
    json_output: bool,
) -> None:
    """Limit the total spending of the runs of POPULATION; a round that would exceed it does not start.

    A limit below the current spending stops every further round that has a cost, and a run whose rounds do not fit is
    refused. The ledger records who set the limit and when: see `atoll privacy ledger --population`, and every export.
    """
    if no_limit == (epsilon is not None and delta is not None) or (epsilon is None) != (delta is None):
        raise BadInputError("a limit is --epsilon and --delta", "give both, or --none")
    wanted = None if epsilon is None or delta is None else (epsilon, delta)
    if unit is not None and not create:
        raise BadInputError("--unit is only for a new population; an existing one keeps its unit", "add --create")
    found = client.limit_population(population, wanted, create=create, unit=unit or "participant")
    if json_output:
        print_json(found)
        return
    click.echo(formats.population_line(found))


def _show_populations(source: LedgerQueries, name: str | None, *, json_output: bool) -> None:
    with busy("adding up the ledger"):
        found = source.populations(verify=True) if name is None else (source.population(name, verify=True),)
    if json_output:
        print_json(found if name is None else found[0])
    elif name is None:
        print_table(formats.POPULATION_COLUMNS, map(formats.population_row, found), _NOTHING)
    else:
        click.echo(formats.population_line(found[0]))
        print_table(formats.RUN_COLUMNS, map(formats.run_row, found[0].runs), _NO_RUN[bool(found[0].flaw)])
    _require_sound(found)


def _show_run(source: LedgerQueries, run: str, last: int, *, json_output: bool) -> None:
    with busy("adding up the ledger"):
        page = source.newest_charges(run=run, limit=last)
        found = source.population(page.population, verify=True) if page.population else None
    spent = None if found is None else next((item for item in found.runs if item.run == run), None)
    if json_output:
        print_json({"run": run, "population": page.population, "spent": spent, "charges": page.charges})
    elif found is None:
        click.echo(f"run {run} has no [privacy] section: it is charged nothing, and nothing is promised about it")
    elif spent is None and not found.flaw:
        click.echo(f"run {run} of population {found.population} was charged nothing: it has released nothing yet")
    elif spent is not None:
        click.echo(formats.run_line(spent, found))
        print_table(formats.CHARGE_COLUMNS, map(formats.charge_row, page.charges), "")
    if found is not None:
        _require_sound((found,))


def _show_participant(source: LedgerQueries, participant: str, *, json_output: bool) -> None:
    with busy("adding up the ledger"):
        found = source.participant_privacy(participant)
    if json_output:
        print_json(found)
    else:
        for line in formats.participant_lines(found):
            click.echo(line)
        print_table(formats.PART_COLUMNS, map(formats.part_row, found.runs), "it was never drawn for a round")
    _require_sound(found.populations)


def _require_sound(found: tuple[PopulationSummary, ...]) -> None:
    flaws = [item.flaw for item in found if item.flaw]
    if flaws:
        raise OperatorError(
            "; ".join(flaws), "stop the server, restore a backup, and compare it with the last export of the ledger"
        )


def _export(source: LedgerQueries, path: Path, name: str | None, *, json_output: bool) -> None:
    """Write the charges of one population, or of all, unchanged, and verify the written file."""
    from atoll.server.privacy.chain import verified  # noqa: PLC0415  # imports SQLAlchemy: half a second

    with busy("exporting the ledger"):
        found = source.populations(verify=True) if name is None else (source.population(name, verify=True),)
        lines = [line for population in found for line in _export_lines(source, population)]
        checked = verified(lines)
    with writing(path):
        write_atomic(path, "".join(lines).encode("ascii"), mode=_EXPORT_MODE)
    damaged = {item.population for item in found if item.flaw}
    heads = [
        {"population": tally.population, "charges": tally.charges, "head": tally.head}
        for tally in checked.tallies
        if tally.population not in damaged
    ]
    if json_output:
        flaws = list(map(formats.flaw_values, checked.flaws))
        print_json({"file": str(path), "populations": heads, "damaged": sorted(damaged), "flaws": flaws})
    else:
        charges = sum('"seq":' in line for line in lines)
        click.echo(f"{path}: {counted(charges, 'charge')}", err=True)
        for head in heads:
            click.echo(f"{head['population']}={head['head']}")
        for flaw in checked.flaws:
            click.echo(formats.flaw_line(str(path), flaw), err=True)
    _require_sound(found)
    if checked.flaws:
        raise OperatorError(f"{path} does not verify, though the server's ledger does", "export it again")


def _export_lines(source: LedgerQueries, population: PopulationSummary) -> Iterator[str]:
    if population.line:
        yield population.line
    start: int | None = 0
    while start is not None:
        page = source.charges(population.population, start=start)
        # Charges made meanwhile are left to the next export, since the limit line covers the charges read before.
        yield from (one.line for one in page.charges if population.flaw or one.seq < population.charges)
        start = page.next_seq
    if population.limit_line:
        yield population.limit_line
