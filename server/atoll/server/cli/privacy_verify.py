"""``atoll privacy verify``: checks an exported ledger without a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from atoll.operator.errors import BadInputError, OperatorError
from atoll.server.cli import privacy_formats as formats
from atoll.server.cli.errors import Command
from atoll.server.cli.output import json_option, print_json, print_table
from atoll.text.figures import SET_DIGITS, bound, counted, figure

if TYPE_CHECKING:
    from atoll.server.privacy.chain import Verified

CHAIN_COLUMNS = ("population", "charges>", "runs>", "spent>", "at delta>", "limit>", "adjacency", "accountant", "head")


@click.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--head",
    "heads",
    multiple=True,
    metavar="[POPULATION=]DIGEST",
    help="The noted head, which shows whether the last charges are missing. May be given for each population.",
)
@json_option
def verify(*, file: Path, heads: tuple[str, ...], json_output: bool) -> None:
    """Verify an exported ledger, without a server; exit code 1 if anything was changed, moved or removed.

    Epsilon is computed again from the charges in FILE. A FILE without any ledger also fails.
    """
    from atoll.server.privacy.chain import verified  # noqa: PLC0415  # imports SQLAlchemy: half a second

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
        print_table(CHAIN_COLUMNS, map(_chain_row, chains), "")
        for flaw in found.flaws:
            click.echo(formats.flaw_line(str(file), flaw))
    if found.flaws:
        raise OperatorError(
            f"{file} differs from the export: {counted(len(found.flaws), 'flaw')}",
            "export the ledger again, and compare",
        )
    if not chains:
        raise OperatorError(f"{file} has no line of a ledger", "export one: `atoll privacy ledger --export FILE.jsonl`")


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
            f"--head {text!r} is not a digest", "write its 64 hex digits as `atoll privacy ledger` shows them"
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
    limit_epsilon: float | None = None
    limit_delta: float | None = None
    limited_by: str = ""
    limited_at: float | None = None


def _chains(found: Verified) -> Iterator[Chain]:
    from atoll.server.privacy import ledger as ledgers  # noqa: PLC0415  # as above

    for tally in found.tallies:
        delta = min((run.delta for run in tally.runs.values()), default=None)
        line = found.limits.get(tally.population)
        limit = {} if line is None or line.limit is None else line.limit
        epsilon, accountant = None, ledgers.NO_ACCOUNT
        if delta is not None:
            epsilon, accountant = ledgers.filtered_of(tally, (), delta)
        adjacency = found.adjacencies.get(tally.population, "")
        figures = (tally.charges, len(tally.runs), epsilon, delta, accountant, tally.head)
        yield Chain(
            tally.population,
            adjacency,
            *figures,
            limit_epsilon=limit.get("epsilon"),
            limit_delta=limit.get("delta"),
            limited_by="" if line is None else line.limited_by,
            limited_at=None if line is None else line.limited_at,
        )


def _chain_row(item: Chain) -> tuple[object, ...]:
    """A population of an export."""
    return (
        item.population,
        item.charges,
        item.runs,
        bound(item.epsilon),
        figure(item.delta),
        figure(item.limit_epsilon, SET_DIGITS),
        item.adjacency,
        item.accountant,
        item.head,
    )
