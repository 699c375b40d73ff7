"""Projects, their quotas and contents. Rows are never removed, so that no name is used twice.

A population's name includes its project, as ``PROJECT/NAME``, unless the project is ``default``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, Text, insert, select, type_coerce, union, update

from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.stores import schema_upgrades
from atoll.server.stores.errors import RecordMissingError
from atoll.server.stores.migrations.compatibility import PROJECTS_FROM
from atoll.server.stores.row_conversion import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import models, participants, projects, runs

MAX_POPULATION_CHARS = 64
"""Maximum number of characters of a population's full name, which is the column's limit."""
_WITHIN = "/"


@dataclass(frozen=True)
class Project:
    """One project.

    Attributes:
        name: of the project.
        created_at: epoch seconds UTC; 0 for ``default``, which always exists.
        created_by: the operator who created it.
        closed_at: the time since which nothing can begin in it; None if it is open.
        max_runs: maximum number of runs that have not ended; None for no quota.
        max_participants: maximum number of unrevoked participants, not counting aggregators; None for no quota.
        max_model_bytes: maximum bytes of models and optimiser states; None for no quota.
    """

    name: str
    created_at: float = 0.0
    created_by: str = ""
    closed_at: float | None = None
    max_runs: int | None = None
    max_participants: int | None = None
    max_model_bytes: int | None = None


def add(connection: Connection, project: Project) -> None:
    """Record a new project. After the first one, servers of releases without projects must not use the database.

    Raises:
        RecordConflictError: (from the writer) if the name is taken.
    """
    connection.execute(insert(projects).values(to_row(project)))
    schema_upgrades.require(connection, PROJECTS_FROM)


def get(connection: Connection, name: str) -> Project:
    """The project of this name.

    Raises:
        RecordMissingError: there is no such project.
    """
    found = fetch_one(connection, Project, select_all(Project, projects).where(projects.c.name == name))
    if found is None:
        if name == DEFAULT_PROJECT:
            return Project(DEFAULT_PROJECT)
        raise RecordMissingError("project", name)
    return found


def listed(connection: Connection) -> tuple[Project, ...]:
    """All projects, by name."""
    found = fetch_all(connection, Project, select_all(Project, projects))
    first = () if any(one.name == DEFAULT_PROJECT for one in found) else (Project(DEFAULT_PROJECT),)
    return tuple(sorted((*first, *found), key=lambda one: one.name))


def put(connection: Connection, project: Project) -> None:
    """Replace the row of a project."""
    query = update(projects).where(projects.c.name == project.name).values(to_row(project))
    if connection.execute(query).rowcount == 0:
        connection.execute(insert(projects).values(to_row(project)))


def of_run(connection: Connection, run_id: str) -> str | None:
    """The project of a run; None if there is no such run."""
    return connection.execute(select(runs.c.project).where(runs.c.id == run_id)).scalar_one_or_none()


def of_runs(connection: Connection, run_ids: Collection[str]) -> dict[str, str]:
    """The projects of these runs, by id; unknown ones are left out."""
    found = connection.execute(select(runs.c.id, runs.c.project).where(runs.c.id.in_(run_ids)))
    return {row.id: row.project for row in found}


def of_participants(connection: Connection, ids: Collection[str]) -> dict[str, str]:
    """The projects of these participants, by id; unknown ones are left out."""
    found = connection.execute(select(participants.c.id, participants.c.project).where(participants.c.id.in_(ids)))
    return {row.id: row.project for row in found}


def naming_blob(connection: Connection, blob: str) -> frozenset[str]:
    """The projects with a run that uses a blob: as a model, as its initial model, or as an optimiser state."""
    as_text = type_coerce(models.c.optimiser_blobs, Text)
    named = (models.c.blob == blob) | as_text.contains(f'"{blob}"', autoescape=True)
    released = select(runs.c.project).join(models, runs.c.id == models.c.run_id).where(named)
    first = select(runs.c.project).where(runs.c.initial_model == blob)
    return frozenset(connection.execute(union(released, first)).scalars())


def blobs_of(connection: Connection, project: str, *, without: Collection[str] = ()) -> frozenset[str]:
    """The blobs that a project's runs use, models and optimiser states, except those of the runs ``without``."""
    query = (
        select(models.c.blob, models.c.optimiser_blobs)
        .join(runs, runs.c.id == models.c.run_id)
        .where(runs.c.project == project, runs.c.id.not_in(without))
    )
    found = set[str]()
    for blob, states in connection.execute(query):
        found.add(blob)
        found.update(name for _, name in states)
    return frozenset(found)


def qualified(project: str, population: str) -> str:
    """The full name of a population of a project; a name that already includes a project is returned unchanged."""
    own, within, name = population.partition(_WITHIN)
    if not within:
        own, name = project, population
    return name if own == DEFAULT_PROJECT else f"{own}{_WITHIN}{name}"


def is_qualified(population: str) -> bool:
    """Whether the name of a population includes its project."""
    return _WITHIN in population


def of_population(population: str) -> str:
    """The project of a population, by its full name."""
    project, within, _ = population.partition(_WITHIN)
    return project if within else DEFAULT_PROJECT
