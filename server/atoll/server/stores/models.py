"""Released models: the blob of each version, and the server optimiser's state after it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam, exists, func, insert, select, union_all

from atoll.server.stores.columns import NamedTexts
from atoll.server.stores.row_checksums import checksum_of
from atoll.server.stores.row_conversion import checksummed, fetch_all, fetch_sound, select_all, to_checksummed_row
from atoll.server.stores.schema import models, runs

_PAGE_NAMES = 500
_WHOLE = select(runs.c.id, runs.c.initial_model, runs.c.best_model, runs.c.keep_models, runs.c.finished_at)
ITERATE_AVERAGE = "iterate_average"
"""Name of the mean of a run's released models in ``Model.optimiser_blobs``; kept as long as the newest model."""
LOOK_BACK = 8
"""Number of versions checked for deletable blobs after each release; the sweep finds the rest."""


@dataclass(frozen=True)
class Model:
    """One version: 0 is the initial model (``round`` None), v the one after v train rounds.

    ``optimiser_blobs``, ((name, blob), ...), has the blobs that the next release needs in addition to the model: the
    server optimiser's state tensors, kept noise, and the mean of the released models as ``ITERATE_AVERAGE``.
    """

    run_id: str
    version: int
    round: int | None
    blob: str
    size_bytes: int
    created_at: float
    optimiser_blobs: NamedTexts = ()

    @property
    def title(self) -> str:
        """Name of the record in errors."""
        return f"model {self.version} of run {self.run_id}"

    @property
    def average_blob(self) -> str | None:
        """The mean of the models up to this one; None if there is none, or it is no longer kept."""
        return dict(self.optimiser_blobs).get(ITERATE_AVERAGE)

    @property
    def checksum(self) -> str:
        """A checksum over all fields."""
        states = (text for pair in sorted(self.optimiser_blobs) for text in pair)
        return checksum_of(
            self.run_id, self.version, self.round, self.blob, self.size_bytes, float(self.created_at), *states
        )


def _surplus() -> Select[Any]:
    """Blobs of a range of a run's versions that no other version and no run refers to."""
    old = (models.c.run_id == bindparam("run")) & models.c.version.between(bindparam("low"), bindparam("high"))
    other = models.alias()
    others = (other.c.run_id != bindparam("run")) | ~other.c.version.between(bindparam("low"), bindparam("high"))
    named = exists().where(other.c.blob == models.c.blob, others).correlate(models)
    of_runs = union_all(select(runs.c.initial_model), select(runs.c.best_model).where(runs.c.best_model.is_not(None)))
    return select(models.c.blob).where(old, ~named, models.c.blob.not_in(of_runs)).distinct()


# A round needs each of these; building a statement costs more than running it.
_ADD = insert(models)
_LATEST = (
    checksummed(Model, models).where(models.c.run_id == bindparam("run")).order_by(models.c.version.desc()).limit(1)
)
_VERSION = checksummed(Model, models).where(
    models.c.run_id == bindparam("run"), models.c.version == bindparam("version")
)
_SURPLUS = _surplus()


def add(connection: Connection, model: Model) -> None:
    """Record a model.

    Raises:
        RecordConflictError: (from the writer) if the version or round already has a model.
    """
    connection.execute(_ADD, to_checksummed_row(model))


def latest(connection: Connection, run_id: str) -> Model | None:
    """The newest version; None before the first. Raises what ``of_version`` raises."""
    return next(iter(fetch_sound(connection, Model, _LATEST, {"run": run_id})), None)


def of_version(connection: Connection, run_id: str, version: int) -> Model | None:
    """One version; None if it does not exist.

    Raises:
        StoreDamagedError: if its row was altered on disk.
    """
    return next(iter(fetch_sound(connection, Model, _VERSION, {"run": run_id, "version": version})), None)


def of_round(connection: Connection, run_id: str, round_number: int) -> Model | None:
    """The model that a round released, or None. Raises what ``of_version`` raises."""
    query = checksummed(Model, models).where(models.c.run_id == run_id, models.c.round == round_number)
    return next(iter(fetch_sound(connection, Model, query)), None)


def version_of(connection: Connection, run_id: str, blob: str) -> int | None:
    """The oldest version of a run with this blob, or None."""
    query = select(func.min(models.c.version)).where(models.c.run_id == run_id, models.c.blob == blob)
    return connection.execute(query).scalar()


def listed(connection: Connection, run_id: str) -> tuple[Model, ...]:
    """Every version of a run, in order, damaged rows included: for counting, not for use."""
    query = select_all(Model, models).where(models.c.run_id == run_id).order_by(models.c.version)
    return fetch_all(connection, Model, query)


def forget_optimiser(connection: Connection, run_id: str, *, below_version: int) -> None:
    """Forget the optimiser states of versions below this one; only the newest is needed to continue."""
    older = (models.c.run_id == run_id) & models.c.version.between(below_version - LOOK_BACK, below_version - 1)
    for model in fetch_sound(connection, Model, checksummed(Model, models).where(older)):
        if model.optimiser_blobs:
            this = (models.c.run_id == run_id) & (models.c.version == model.version)
            bare = replace(model, optimiser_blobs=())
            connection.execute(models.update().where(this).values(to_checksummed_row(bare)))


def surplus_blobs(connection: Connection, run_id: str, *, through_version: int) -> frozenset[str]:
    """Blobs that only a run's versions up to this one refer to; checks the last ``LOOK_BACK`` versions.

    Blobs of older versions were removed earlier, or the sweep removes them.
    """
    values = {"run": run_id, "low": max(1, through_version - LOOK_BACK + 1), "high": through_version}
    return frozenset(connection.execute(_SURPLUS, values).scalars())


def unnamed(connection: Connection, names: Collection[str]) -> frozenset[str]:
    """The blobs in ``blobs`` that no run, model or optimiser state refers to."""
    named = _optimiser_blobs(connection)
    for page in (list(names)[at : at + _PAGE_NAMES] for at in range(0, len(names), _PAGE_NAMES)):
        named |= set(connection.execute(select(models.c.blob).where(models.c.blob.in_(page))).scalars())
        named |= _named_by_runs(connection, page)
    return frozenset(set(names) - named)


def to_keep(connection: Connection, *, keep: int, ended_before: float) -> frozenset[str]:
    """Every blob that must be kept; all others may be deleted while no run is being submitted or released.

    For each run these are the first, the best and the newest model, and the mean of its models if there is one. For
    runs that did not end before ``ended_before``, they are also the newest ``keep`` models and the optimiser states.

    Raises:
        StoreDamagedError: if a row that refers to blobs was altered on disk, since it may have referred to another
            blob.
    """
    kept: set[str] = set()
    for run in connection.execute(_WHOLE):
        recent = run.finished_at is None or run.finished_at >= ended_before
        newest = (
            checksummed(Model, models)
            .where(models.c.run_id == run.id)
            .order_by(models.c.version.desc())
            .limit((run.keep_models or keep) if recent else 1)
        )
        kept.update(name for name in (run.initial_model, run.best_model) if name)
        for model in fetch_sound(connection, Model, newest):
            kept.add(model.blob)
            kept.update(blob for name, blob in model.optimiser_blobs if recent or name == ITERATE_AVERAGE)
    return frozenset(kept)


def _named_by_runs(connection: Connection, names: Collection[str]) -> set[str]:
    first = select(runs.c.initial_model).where(runs.c.initial_model.in_(names))
    best = select(runs.c.best_model).where(runs.c.best_model.in_(names))
    return {name for query in (first, best) for name in connection.execute(query).scalars() if name}


def _optimiser_blobs(connection: Connection) -> set[str]:
    """Optimiser states of the newest version of every run."""
    other = models.alias()
    newest = select(func.max(other.c.version)).where(other.c.run_id == runs.c.id).correlate(runs).scalar_subquery()
    query = select(models.c.optimiser_blobs).join(
        runs, (models.c.run_id == runs.c.id) & (models.c.version >= newest - 1)
    )
    return {blob for states in connection.execute(query).scalars() for _, blob in states}
