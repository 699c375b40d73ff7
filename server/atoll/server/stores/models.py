"""Released models: which blob each version is, and what the server optimiser needs to go on from it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select

from atoll.server.stores.columns import NamedTexts
from atoll.server.stores.rows import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import models, runs


@dataclass(frozen=True)
class Model:
    """One version: 0 is the initial model (``round`` None), v the one after v train rounds.

    ``optimiser_blobs`` names the server optimiser's state tensors: ((name, blob), ...).
    """

    run_id: str
    version: int
    round: int | None
    blob: str
    size_bytes: int
    created_at: float
    optimiser_blobs: NamedTexts = ()


def add(connection: Connection, model: Model) -> None:
    """Keep a model's name.

    Raises:
        RecordConflictError: (from the writer) if the version or round has one.
    """
    connection.execute(insert(models).values(to_row(model)))


def latest(connection: Connection, run_id: str) -> Model | None:
    """The newest version; None before the first."""
    query = select_all(Model, models).where(models.c.run_id == run_id).order_by(models.c.version.desc()).limit(1)
    return fetch_one(connection, Model, query)


def of_version(connection: Connection, run_id: str, version: int) -> Model | None:
    """One version; None if it is not there."""
    query = select_all(Model, models).where(models.c.run_id == run_id, models.c.version == version)
    return fetch_one(connection, Model, query)


def of_round(connection: Connection, run_id: str, round_number: int) -> Model | None:
    """The model that a round released; None if it released none."""
    query = select_all(Model, models).where(models.c.run_id == run_id, models.c.round == round_number)
    return fetch_one(connection, Model, query)


def listed(connection: Connection, run_id: str) -> tuple[Model, ...]:
    """Every version of a run, in order."""
    query = select_all(Model, models).where(models.c.run_id == run_id).order_by(models.c.version)
    return fetch_all(connection, Model, query)


def forget_optimiser(connection: Connection, run_id: str, *, below_version: int) -> None:
    """Let go of the optimiser states of versions below this one: only the newest is needed to go on."""
    older = (models.c.run_id == run_id) & (models.c.version < below_version)
    connection.execute(models.update().where(older).values(optimiser_blobs=()))


def surplus_blobs(connection: Connection, run_id: str, *, through_version: int, look_back: int = 8) -> frozenset[str]:
    """Blobs of a run's versions up to this one that nothing else names; never the initial model's.

    Looks at the last ``look_back`` of them: the older ones were surplus before, and are gone.
    """
    old = (models.c.run_id == run_id) & models.c.version.between(
        max(1, through_version - look_back + 1), through_version
    )
    candidates = set(connection.execute(select(models.c.blob).where(old)).scalars())
    if not candidates:
        return frozenset()
    others = select(models.c.blob).where(~old, models.c.blob.in_(candidates))
    first = select(runs.c.initial_model).where(runs.c.initial_model.in_(candidates))
    return frozenset(candidates - set(connection.execute(others).scalars()) - set(connection.execute(first).scalars()))


def referenced_blobs(connection: Connection) -> frozenset[str]:
    """Every blob that a run or model names: all others may be removed once no run is being submitted or released."""
    names = set(connection.execute(select(runs.c.initial_model)).scalars())
    for row in connection.execute(select(models.c.blob, models.c.optimiser_blobs)):
        names.add(row.blob)
        names.update(blob for _, blob in row.optimiser_blobs)
    return frozenset(names)
