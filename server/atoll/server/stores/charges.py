"""The privacy ledger: what each released round has cost. At most one charge per round of a run, never removed."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert

from atoll.server.stores.rows import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import charges

NO_MECHANISM = "none"


@dataclass(frozen=True)
class Charge:
    """What a round's release cost: the mechanism (``none``: released without noise) and its parameters as JSON text."""

    run_id: str
    round: int
    attempt: int
    mechanism: str
    body: str
    charged_at: float


def add(connection: Connection, charge: Charge) -> None:
    """Charge a round.

    Raises:
        RecordConflictError: (from the writer) if it has been charged.
    """
    connection.execute(insert(charges).values(to_row(charge)))


def get(connection: Connection, run_id: str, round_number: int) -> Charge | None:
    """The charge of a round; None if it has not been charged."""
    query = select_all(Charge, charges).where(charges.c.run_id == run_id, charges.c.round == round_number)
    return fetch_one(connection, Charge, query)


def listed(connection: Connection, run_id: str) -> tuple[Charge, ...]:
    """Every charge of a run, in order."""
    query = select_all(Charge, charges).where(charges.c.run_id == run_id).order_by(charges.c.round)
    return fetch_all(connection, Charge, query)
