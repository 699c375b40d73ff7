"""The privacy ledger: the cost of each released round. At most one charge per round of a run.

Charges to a population form a hash chain: each has the next number and the digest of the preceding charge. They are
never changed or removed, even if their run is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select

from atoll.server.rounds import RoundKey
from atoll.server.stores import populations
from atoll.server.stores.errors import StoreDamagedError
from atoll.server.stores.hash_chain import Entry, canonical, digest_of
from atoll.server.stores.row_conversion import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import charges

NO_MECHANISM = "none"


@dataclass(frozen=True)
class Charge:
    """The cost of a round's release: the mechanism (``none``: without noise) and its parameters as JSON text.

    A charge to a ``population`` gets its place in that population's chain when it is added: ``seq`` (0, 1, 2, ... no
    gap), its own digest, and the digest of the preceding charge (for the first charge, of the population itself).
    """

    run_id: str
    round: int
    attempt: int
    mechanism: str
    body: str
    charged_at: float
    population: str | None = None
    seq: int | None = None
    previous: str | None = None
    digest: str | None = None

    @property
    def of_round(self) -> str:
        """The charged round, for error texts; counted from 1, as in all texts for users."""
        return f"round {RoundKey(self.round, self.attempt)} of run {self.run_id}"

    @property
    def exported(self) -> Entry:
        """The fields that the digest covers, under the names of an export and as stored, even if they are damaged."""
        return {
            "attempt": self.attempt,
            "charged_at": self.charged_at,
            "cost": self.body,
            "mechanism": self.mechanism,
            "population": self.population,
            "previous": self.previous,
            "round": self.round,
            "run": self.run_id,
            "seq": self.seq,
        }

    @classmethod
    def from_export(cls, line: Mapping[str, Any]) -> Charge:
        """The charge of an exported line: the names of ``exported`` and ``digest``, with the cost as a JSON object."""
        same = {name: value for name, value in line.items() if name not in ("run", "cost")}
        return cls(run_id=line["run"], body=canonical(line["cost"]), **same)

    @property
    def entry(self) -> Entry:
        """The entry that the digest covers: the exported fields, with the cost as a JSON object.

        Raises:
            StoreDamagedError: if its body is not JSON.
        """
        try:
            cost = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise StoreDamagedError(f"the charge of {self.of_round} cannot be read") from error
        return {**self.exported, "charged_at": float(self.charged_at), "cost": cost}


# A round needs both; building a statement costs more than running it.
_ADD = insert(charges)
_OF_ROUND = select_all(Charge, charges).where(charges.c.run_id == bindparam("run"), charges.c.round == bindparam("at"))


def add(connection: Connection, charge: Charge) -> Charge:
    """Charge a round; returns the charge as stored.

    Raises:
        RecordConflictError: (from the writer) if the round has been charged.
        RecordMissingError: if there is no such population.
    """
    kept = charge if charge.population is None else _chained(connection, charge, charge.population)
    connection.execute(_ADD, to_row(kept))
    return kept


def get(connection: Connection, run_id: str, round_number: int) -> Charge | None:
    """The charge of a round; None if it has not been charged."""
    return fetch_one(connection, Charge, _OF_ROUND, {"run": run_id, "at": round_number})


def listed(connection: Connection, run_id: str) -> tuple[Charge, ...]:
    """All charges of a run, in order."""
    query = select_all(Charge, charges).where(charges.c.run_id == run_id).order_by(charges.c.round)
    return fetch_all(connection, Charge, query)


def of_population(
    connection: Connection, population: str, *, run_id: str | None = None, start: int = 0, limit: int
) -> tuple[Charge, ...]:
    """Charges to a population in the order of its chain, from number ``start`` on, of all runs or of one."""
    ours = (charges.c.population == population) & (charges.c.seq >= start)
    if run_id is not None:
        ours &= charges.c.run_id == run_id
    return fetch_all(connection, Charge, select_all(Charge, charges).where(ours).order_by(charges.c.seq).limit(limit))


def newest_of_population(
    connection: Connection, population: str, *, run_id: str | None = None, limit: int
) -> tuple[Charge, ...]:
    """The last charges to a population in the order of its chain, of all runs or of one."""
    ours = charges.c.population == population
    if run_id is not None:
        ours &= charges.c.run_id == run_id
    query = select_all(Charge, charges).where(ours).order_by(charges.c.seq.desc()).limit(limit)
    return tuple(reversed(fetch_all(connection, Charge, query)))


def before(connection: Connection, charge: Charge) -> tuple[Charge, ...]:
    """The earlier charges of the same run to the same population, in order."""
    earlier = charges.c.seq < charge.seq
    ours = (charges.c.population == charge.population) & (charges.c.run_id == charge.run_id) & earlier
    return fetch_all(connection, Charge, select_all(Charge, charges).where(ours).order_by(charges.c.seq))


def population_of(connection: Connection, run_id: str) -> str | None:
    """The population that a run was charged to; None if there is none."""
    ours = (charges.c.run_id == run_id) & charges.c.population.is_not(None)
    return connection.execute(select(charges.c.population).where(ours).limit(1)).scalar_one_or_none()


def digest_at(connection: Connection, population: str, seq: int) -> str | None:
    """The digest of the charge with this number; None if there is no such charge."""
    query = select(charges.c.digest).where(charges.c.population == population, charges.c.seq == seq)
    return connection.execute(query).scalar_one_or_none()


def _chained(connection: Connection, charge: Charge, population: str) -> Charge:
    """Append the charge to the end of the chain; returns it with its number and link."""
    standing = populations.locked(connection, population)
    body = canonical(json.loads(charge.body))
    placed = replace(charge, body=body, seq=standing.charges, previous=standing.head)
    digest = digest_of(placed.entry)
    populations.put(connection, replace(standing, charges=standing.charges + 1, head=digest))
    return replace(placed, digest=digest)
