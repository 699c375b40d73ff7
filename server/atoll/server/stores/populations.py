"""Populations: groups of participants whose privacy is accounted for together across runs. Never removed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection, insert, select, update

from atoll.server.stores.errors import RecordMissingError
from atoll.server.stores.hash_chain import Entry, digest_of
from atoll.server.stores.row_checksums import checksum_of
from atoll.server.stores.row_conversion import checksummed, fetch_one, fetch_sound, select_all, to_checksummed_row
from atoll.server.stores.schema import populations

UNITS = {"add_remove_row": "row"}
"""The unit of privacy by adjacency, unless it is one participant with everything that it has ever sent."""


@dataclass(frozen=True)
class Population:
    """One population.

    ``charges`` counts its charges and ``head`` is the digest of the newest (of the population itself if there is none),
    so that removal of the last charges is also detected. ``epsilon`` and ``delta`` are its limit, both None if it has
    none; ``limited_by`` is the operator who set it.
    """

    name: str
    adjacency: str
    created_at: float
    charges: int = 0
    head: str = ""
    epsilon: float | None = None
    delta: float | None = None
    limited_by: str = ""
    limited_at: float | None = None

    @property
    def unit(self) -> str:
        """The unit of privacy."""
        return UNITS.get(self.adjacency, "participant")

    @property
    def title(self) -> str:
        """Name of the record in errors."""
        return f"population {self.name}"

    @property
    def checksum(self) -> str:
        """A checksum over all fields."""
        limited_at = None if self.limited_at is None else float(self.limited_at)
        limit = [None if value is None else float(value) for value in (self.epsilon, self.delta)]
        chain = (self.name, self.adjacency, float(self.created_at), self.charges, self.head)
        return checksum_of(*chain, *limit, self.limited_by, limited_at)

    @property
    def entry(self) -> Entry:
        """The first entry of its chain of charges: its constant fields."""
        return {
            "adjacency": self.adjacency,
            "created_at": float(self.created_at),
            "population": self.name,
            "unit": self.unit,
        }

    @property
    def root(self) -> str:
        """The digest that the first charge links to."""
        return digest_of(self.entry)


def add(connection: Connection, name: str, adjacency: str, created_at: float) -> Population:
    """Record a new population, without charges or limit.

    Raises:
        RecordConflictError: (from the writer) if the name is taken.
    """
    bare = Population(name, adjacency, created_at)
    population = replace(bare, head=bare.root)
    connection.execute(insert(populations).values(to_checksummed_row(population)))
    return population


def get(connection: Connection, name: str) -> Population:
    """The population of this name.

    Raises:
        RecordMissingError: there is no such population.
        StoreDamagedError: if its row was altered on disk.
    """
    found = find(connection, name)
    if found is None:
        raise RecordMissingError("population", name)
    return found


def find(connection: Connection, name: str) -> Population | None:
    """Like ``get``; None if there is no such population."""
    query = checksummed(Population, populations).where(populations.c.name == name)
    return next(iter(fetch_sound(connection, Population, query)), None)


def as_it_stands(connection: Connection, name: str) -> Population | None:
    """Like ``find``, but also returns a row that was altered on disk; for display only."""
    return fetch_one(connection, Population, select_all(Population, populations).where(populations.c.name == name))


def locked(connection: Connection, name: str) -> Population:
    """Like ``get``, with a lock: no other transaction charges the population before this one ends."""
    query = checksummed(Population, populations).where(populations.c.name == name).with_for_update()
    found = fetch_sound(connection, Population, query)
    if not found:
        raise RecordMissingError("population", name)
    return found[0]


def names(connection: Connection) -> tuple[str, ...]:
    """The names of all populations, including those whose row is damaged."""
    return tuple(connection.execute(select(populations.c.name).order_by(populations.c.name)).scalars())


def put(connection: Connection, population: Population) -> None:
    """Replace the row of an existing population.

    Raises:
        RecordMissingError: there is no population of its name.
    """
    query = update(populations).where(populations.c.name == population.name)
    if connection.execute(query.values(to_checksummed_row(population))).rowcount != 1:
        raise RecordMissingError("population", population.name)
