"""The readable part of a damaged ledger: shown and exported, never used for a decision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from atoll.server.privacy.chain import first_line
from atoll.server.privacy.tally import PAGE, RunTally, Tally, add_charge
from atoll.server.stores import Charge, Population, StoreDamagedError, charges, populations


@dataclass(frozen=True)
class Remains:
    """The readable part of one population: its row, even if it was altered; None if it is lost.

    The tally counts every charge and adds up the readable ones, whether or not they are consecutive. ``line`` is the
    first line of its export, empty without a row.
    """

    row: Population | None
    tally: Tally
    line: str


def remains(connection: Connection, population: str) -> Remains:
    """The readable part of a population."""
    runs: dict[str, RunTally] = {}
    count = 0
    for charge in _every(connection, population):
        count += 1
        try:
            add_charge(runs, charge)
        except StoreDamagedError:
            continue
    row = _readable(populations.as_it_stands(connection, population))
    head = "" if row is None else row.head
    return Remains(row, Tally(population, count, head, runs), "" if row is None else first_line(row))


def _every(connection: Connection, population: str) -> Iterator[Charge]:
    start: int | None = 0
    while start is not None:
        page = charges.of_population(connection, population, start=start, limit=PAGE)
        yield from page
        last = page[-1].seq if page else None
        start = last + 1 if isinstance(last, int) and len(page) == PAGE else None


def _readable(row: Population | None) -> Population | None:
    """The row with values of the right types; None if SQLite holds other types."""
    if row is None:
        return None
    try:
        return Population(
            name=str(row.name),
            adjacency=str(row.adjacency),
            created_at=float(row.created_at),
            charges=int(row.charges),
            head=str(row.head),
            epsilon=None if row.epsilon is None else float(row.epsilon),
            delta=None if row.delta is None else float(row.delta),
            limited_by=str(row.limited_by),
            limited_at=None if row.limited_at is None else float(row.limited_at),
        )
    except (TypeError, ValueError):
        return None
