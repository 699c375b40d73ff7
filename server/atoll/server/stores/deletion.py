"""Deletes a run: all rows that refer to it, except its privacy charges to a population."""

from __future__ import annotations

from sqlalchemy import Connection, delete

from atoll.server.stores import models
from atoll.server.stores import runs as run_rows
from atoll.server.stores.schema import charges, runs


def delete_run(connection: Connection, run_id: str) -> frozenset[str]:
    """Remove every row of a run; returns the blobs that the rows referred to, which other rows may also use.

    Its charges to a population stay, and so do participants and their histories, which belong to no run.

    Raises:
        RecordMissingError: no such run.
    """
    run = run_rows.get(connection, run_id)
    named = {run.initial_model, run.current_model, run.best_model}
    for model in models.listed(connection, run_id):
        named |= {model.blob, *(blob for _, blob in model.optimiser_blobs)}
    connection.execute(delete(charges).where(charges.c.run_id == run_id, charges.c.population.is_(None)))
    connection.execute(delete(runs).where(runs.c.id == run_id))
    return frozenset(name for name in named if name)
