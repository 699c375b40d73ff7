"""Runs: the submitted job and its status."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.stores.errors import RecordMissingError
from atoll.server.stores.paging import newest
from atoll.server.stores.row_checksums import checksum_of
from atoll.server.stores.row_conversion import checksummed, fetch_all, fetch_sound, select_all, to_checksummed_row
from atoll.server.stores.schema import events, runs


@dataclass(frozen=True)
class Run:
    """One run.

    ``layout`` is the model's layout as its protobuf message; ``initial_model``, ``current_model`` and ``best_model``
    are blob names. The best model is chosen by the metric in the job's ``[retention]``, and ``best_value`` is its
    value. ``keep_models`` is the number of models to keep, None for the server's setting. ``seed`` is for the
    participants' random numbers, None in a run of an earlier version. ``rounds_total`` grows when the run is extended,
    and ``extended_after`` has, for each extension, the number of models released by then.
    """

    id: str
    name: str
    job_toml: str
    layout: bytes
    initial_model: str
    current_model: str
    rounds_total: int
    status: str
    submitted_by: str
    created_at: float
    rounds_released: int = 0
    reason: str = ""
    finished_at: float | None = None
    best_model: str | None = None
    best_value: float | None = None
    keep_models: int | None = None
    seed: int | None = None
    extended_after: tuple[float, ...] | None = None
    project: str = DEFAULT_PROJECT

    @property
    def title(self) -> str:
        """Name of the record in errors."""
        return f"run {self.id}"

    @property
    def checksum(self) -> str:
        """A checksum over the submitted fields, which only ``extend`` changes; the event log has the status."""
        seed = () if self.seed is None else (self.seed,)  # without a seed, the checksum of versions that had none
        project = (
            () if self.project == DEFAULT_PROJECT else (self.project,)
        )  # the checksum of versions without projects
        job = (self.id, self.name, self.job_toml, self.rounds_total, self.keep_models, *seed, *project)
        return checksum_of(*job, self.layout, self.initial_model, self.submitted_by, float(self.created_at))


# A round needs them; building a statement costs more than running it.
_ONE = checksummed(Run, runs).where(runs.c.id == bindparam("run"))
_MODEL = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(current_model=bindparam("model"), rounds_released=bindparam("released"))
)


def add(connection: Connection, run: Run) -> None:
    """Record a new run.

    Raises:
        RecordConflictError: (from the writer) if the id is taken.
    """
    connection.execute(insert(runs).values(to_checksummed_row(run)))


def get(connection: Connection, run_id: str) -> Run:
    """The run with this id.

    Raises:
        RecordMissingError: no such run.
        StoreDamagedError: if a submitted field was altered on disk.
    """
    found = fetch_sound(connection, Run, _ONE, {"run": run_id})
    if not found:
        raise RecordMissingError("run", run_id)
    return found[0]


def listed(connection: Connection, *, project: str | None, after: str = "", limit: int = 1000) -> tuple[Run, ...]:
    """Runs of a project (None: of all), newest first, after the position ``after`` (``paging.mark``).

    Includes runs whose record is damaged; for display and counting only.
    """
    query = select_all(Run, runs)
    if project is not None:
        query = query.where(runs.c.project == project)
    return fetch_all(connection, Run, newest(query, runs, after=after, limit=limit))


def names(connection: Connection, run_ids: Collection[str]) -> dict[str, str]:
    """Names of these runs by id; missing runs are left out."""
    query = select(runs.c.id, runs.c.name).where(runs.c.id.in_(run_ids))
    return {row.id: row.name for row in connection.execute(query)}


def with_status(connection: Connection, statuses: Collection[str]) -> tuple[Run, ...]:
    """Every run in one of these statuses, oldest first, for example the runs to resume after a restart.

    Raises:
        StoreDamagedError: if a submitted field was altered on disk.
    """
    query = checksummed(Run, runs).where(runs.c.status.in_(statuses)).order_by(runs.c.created_at, runs.c.id)
    return fetch_sound(connection, Run, query)


def count_with_status(connection: Connection, project: str, statuses: Collection[str]) -> int:
    """Number of a project's runs in one of these statuses."""
    ours = (runs.c.project == project) & runs.c.status.in_(statuses)
    return int(connection.execute(select(func.count()).select_from(runs).where(ours)).scalar_one())


def ended_with_events(connection: Connection, *, before: float) -> tuple[str, ...]:
    """Ids of runs that ended before an epoch second and still have an event log."""
    logged = select(events.c.seq).where(events.c.run_id == runs.c.id).exists()
    query = select(runs.c.id).where(runs.c.finished_at < before, logged).order_by(runs.c.finished_at, runs.c.id)
    return tuple(connection.execute(query).scalars())


def set_status(
    connection: Connection, run_id: str, status: str, *, reason: str = "", finished_at: float | None = None
) -> None:
    """Record the status of a run.

    Raises:
        RecordMissingError: no such run.
    """
    _change(connection, run_id, {"status": status, "reason": reason, "finished_at": finished_at})


def extend(connection: Connection, run_id: str, *, rounds_total: int, released: int) -> None:
    """Record that a run continues to ``rounds_total`` rounds, after ``released`` ones.

    Raises:
        RecordMissingError: no such run.
        StoreDamagedError: if a submitted field was altered on disk.
    """
    run = get(connection, run_id)
    longer = replace(run, rounds_total=rounds_total, extended_after=(*(run.extended_after or ()), released))
    values = {"rounds_total": rounds_total, "extended_after": longer.extended_after, "checksum": longer.checksum}
    _change(connection, run_id, values)


def set_model(connection: Connection, run_id: str, blob: str, *, rounds_released: int) -> None:
    """Record the newest released model.

    Raises:
        RecordMissingError: no such run.
    """
    values = {"run": run_id, "model": blob, "released": rounds_released}
    if connection.execute(_MODEL, values).rowcount != 1:
        raise RecordMissingError("run", run_id)


def set_best(connection: Connection, run_id: str, blob: str, value: float) -> None:
    """Record the best model so far.

    Raises:
        RecordMissingError: no such run.
    """
    _change(connection, run_id, {"best_model": blob, "best_value": value})


def _change(connection: Connection, run_id: str, values: dict[str, Any]) -> None:
    if connection.execute(update(runs).where(runs.c.id == run_id).values(values)).rowcount != 1:
        raise RecordMissingError("run", run_id)
