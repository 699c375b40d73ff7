"""``atoll privacy ledger``, ``limit`` and ``verify``: what has been spent on whom, and what may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.server.cli import privacy_formats as formats
from atoll.server.cli.client import ControlClient
from atoll.server.cli.connection import connected
from atoll.server.cli.errors import BadInputError, CommandError
from atoll.server.cli.output import busy, json_option, print_json, print_table
from atoll.server.cli.run import find_run
from atoll.server.control import PopulationSpending
from atoll.server.identity.files import write_atomic
from atoll.wire.figures import counted

if TYPE_CHECKING:
    from atoll.server.privacy.chain import Verified

MAX_ROUNDS = 50
"""Rounds of a run that one answer tells."""
_EXPORT_MODE = 0o600
_NOTHING = "nothing was charged; runs with a [privacy] section are"


@click.command()
@click.option("--population", metavar="NAME", help="One population, and what each of its runs has spent.")
@click.option("--run", "run_id", metavar="RUN", help="One run, round by round; `latest` for the newest.")
@click.option("--participant", metavar="ID", help="What holds for one participant, and the runs that it was part of.")
@click.option(
    "--last", type=click.IntRange(1, MAX_ROUNDS), default=20, show_default=True, help="Rounds shown with --run."
)
@click.option(
    "--export",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every charge, of one population or all, to this file of JSON lines; `atoll privacy verify` checks it.",
)
@json_option
@connected
def ledger(
    client: ControlClient,
    *,
    population: str | None,
    run_id: str | None,
    participant: str | None,
    last: int,
    export: Path | None,
    json_output: bool,
) -> None:
    """Show what has been spent of each population's privacy; exit code 1 if a ledger is damaged.

    Spent is epsilon at delta, of everything that was released, an upper bound. The digest that is shown as head names
    all charges so far: note it elsewhere, and no charge can be changed or lost unnoticed.
    """
    if sum(option is not None for option in (population, run_id, participant)) > 1:
        raise BadInputError("--population, --run and --participant exclude one another", "give one of them")
    if export is not None:
        if run_id or participant:
            raise BadInputError("--export writes whole populations", "leave --run and --participant out")
        _export(client, export, population, json_output=json_output)
    elif run_id is not None:
        _show_run(client, find_run(client, run_id), last, json_output=json_output)
    elif participant is not None:
        _show_participant(client, participant, json_output=json_output)
    else:
        _show_populations(client, population, json_output=json_output)


@click.command()
@click.argument("population")
@click.option("--epsilon", type=click.FloatRange(0, min_open=True), help="What its runs may spend together, ...")
@click.option("--delta", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="... at this delta.")
@click.option("--none", "no_limit", is_flag=True, help="Take the limit away.")
@click.option(
    "--create",
    type=click.Choice(["add_remove", "replace_one"]),
    help="Begin the population, if no run has yet: with replace_one for cohorts of a fixed size that are drawn "
    "uniformly, with add_remove for all others.",
)
@json_option
@connected
def limit(
    client: ControlClient,
    *,
    population: str,
    epsilon: float | None,
    delta: float | None,
    no_limit: bool,
    create: str | None,
    json_output: bool,
) -> None:
    """Limit what the runs of POPULATION may spend together; a round that would pass it does not start.

    A limit below what is spent stops every further round. The server's log says who set which limit.
    """
    if no_limit == (epsilon is not None and delta is not None) or (epsilon is None) != (delta is None):
        raise BadInputError("a limit is --epsilon and --delta", "give both, or --none")
    wanted = None if epsilon is None or delta is None else (epsilon, delta)
    found = client.limit_population(population, wanted, create or "")
    if json_output:
        print_json(found)
        return
    click.echo(formats.population_line(found))


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--head",
    "heads",
    multiple=True,
    metavar="[POPULATION=]DIGEST",
    help="The head that was noted: tells whether the last charges are missing. May be given for each population.",
)
@json_option
def verify(*, file: Path, heads: tuple[str, ...], json_output: bool) -> None:
    """Verify an exported ledger, without a server; exit code 1 if anything was changed, moved or taken out.

    Epsilon is added up again from the charges in FILE.
    """
    from atoll.server.privacy.chain import verified  # noqa: PLC0415  # SQLAlchemy, Opacus: seconds that others save

    noted = dict(map(_parsed_head, heads))
    if "" in noted:
        names = [tally.population for tally in verified(_lines_of(file)).tallies]
        if len(names) != 1:
            raise BadInputError(
                f"{file} has {counted(len(names), 'population')}", "say whose head it is: --head POPULATION=DIGEST"
            )
        noted[names[0]] = noted.pop("")
    found = verified(_lines_of(file), noted)
    chains = tuple(_chains(found))
    if json_output:
        print_json({"file": str(file), "populations": chains, "flaws": list(map(formats.flaw_values, found.flaws))})
    else:
        print_table(formats.CHAIN_COLUMNS, map(formats.chain_row, chains), f"{file} has no charges")
        for flaw in found.flaws:
            click.echo(formats.flaw_line(str(file), flaw))
    if found.flaws:
        raise CommandError(
            f"{file} is not what was exported: {counted(len(found.flaws), 'flaw')}",
            "export the ledger again, and compare",
        )


def _show_populations(client: ControlClient, name: str | None, *, json_output: bool) -> None:
    with busy("adding up the ledger"):
        found = client.populations(verify=True) if name is None else (client.population(name, verify=True),)
    if json_output:
        print_json(found if name is None else found[0])
    elif name is None:
        print_table(formats.POPULATION_COLUMNS, map(formats.population_row, found), _NOTHING)
    else:
        click.echo(formats.population_line(found[0]))
        print_table(formats.RUN_COLUMNS, map(formats.run_row, found[0].runs), "no run was charged yet")
    _require_sound(found)


def _show_run(client: ControlClient, run: str, last: int, *, json_output: bool) -> None:
    with busy("adding up the ledger"):
        page = client.newest_charges(run=run, limit=last)
        found = client.population(page.charges[0].population) if page.charges else None
    spent = None if found is None else next((item for item in found.runs if item.run == run), None)
    if json_output:
        print_json({"run": run, "spent": spent, "charges": page.charges})
        return
    if found is None or spent is None:
        click.echo(f"run {run} was charged nothing: it has no [privacy] section, or has released nothing yet")
        return
    click.echo(formats.run_line(spent, found))
    print_table(formats.CHARGE_COLUMNS, map(formats.charge_row, page.charges), "")


def _show_participant(client: ControlClient, participant: str, *, json_output: bool) -> None:
    with busy("adding up the ledger"):
        found = client.participant_privacy(participant)
    if json_output:
        print_json(found)
    else:
        for line in formats.participant_lines(found):
            click.echo(line)
        print_table(formats.PART_COLUMNS, map(formats.part_row, found.runs), "it was never drawn for a round")
    _require_sound(found.populations)


def _require_sound(found: tuple[PopulationSpending, ...]) -> None:
    flaws = [item.flaw for item in found if item.flaw]
    if flaws:
        raise CommandError(
            "; ".join(flaws), "stop the server, restore a back-up, and compare it with the last export of the ledger"
        )


def _export(client: ControlClient, path: Path, name: str | None, *, json_output: bool) -> None:
    """Write the charges of one population, or all, and verify what was written."""
    from atoll.server.privacy.chain import verified  # noqa: PLC0415  # SQLAlchemy, Opacus: seconds that others save

    with busy("exporting the ledger"):
        found = client.populations(verify=True) if name is None else (client.population(name, verify=True),)
        _require_sound(found)
        lines = [line for population in found for line in _export_lines(client, population)]
        checked = verified(lines)
    if checked.flaws:
        raise CommandError(formats.flaw_line("what the server sent", checked.flaws[0]), "run `atoll privacy ledger`")
    try:
        write_atomic(path, "".join(lines).encode("ascii"), mode=_EXPORT_MODE)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror}") from error
    heads = [
        {"population": tally.population, "charges": tally.charges, "head": tally.head} for tally in checked.tallies
    ]
    if json_output:
        print_json({"file": str(path), "populations": heads})
        return
    click.echo(f"{path}: {counted(sum(tally.charges for tally in checked.tallies), 'charge')}", err=True)
    for tally in checked.tallies:
        click.echo(f"{tally.population}={tally.head}")


def _export_lines(client: ControlClient, population: PopulationSpending) -> Iterator[str]:
    yield population.line
    start: int | None = 0
    while start is not None:
        page = client.charges(population.population, start=start)
        yield from (charge.line for charge in page.charges)
        start = page.next_seq


def _lines_of(path: Path) -> Iterator[str]:
    from atoll.server.privacy.chain import MAX_LINE_CHARS  # noqa: PLC0415  # as above

    try:
        with path.open(encoding="ascii", errors="replace", newline="\n") as file:
            while line := file.readline(MAX_LINE_CHARS):
                yield line
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from error


def _parsed_head(text: str) -> tuple[str, str]:
    population, _, digest = text.rpartition("=")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise BadInputError(
            f"--head {text!r} is no digest", "write its 64 hex digits as `atoll privacy ledger` shows them"
        )
    return population, digest


@dataclass(frozen=True)
class Chain:
    """One population of an export; ``epsilon`` at ``delta`` is None while nothing is charged."""

    population: str
    adjacency: str
    charges: int
    runs: int
    epsilon: float | None
    delta: float | None
    accountant: str
    head: str


def _chains(found: Verified) -> Iterator[Chain]:
    from atoll.server.privacy import ledger as ledgers  # noqa: PLC0415  # as above

    for tally in found.tallies:
        delta = min((run.delta for run in tally.runs.values()), default=None)
        accountant = ledgers.accountant_of(tally)
        epsilon = None if delta is None else ledgers.epsilon_of(tally.events, delta, accountant)
        adjacency = found.adjacencies.get(tally.population, "")
        yield Chain(tally.population, adjacency, tally.charges, len(tally.runs), epsilon, delta, accountant, tally.head)
