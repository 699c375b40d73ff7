"""The runs that a participant took part in, and the privacy that each promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, distinct, func, select

from atoll.server.privacy.reconciling import population_of_job
from atoll.server.stores.projects import of_population
from atoll.server.stores.schema import charges, members, reports, rounds, runs

_TRAIN = "train"


@dataclass(frozen=True)
class Part:
    """A participant's part in one run: the train rounds it was drawn for, and the releases that contain its update.

    ``population`` is empty for a run without privacy; ``releases`` counts all releases of the run.
    """

    run_id: str
    name: str
    population: str
    drawn: int
    counted: int
    releases: int


def parts_of(connection: Connection, participant: str, *, limit: int) -> tuple[Part, ...]:
    """A participant's part in the newest runs that drew it, without deleted runs."""
    drawn = (
        select(members.c.run_id, func.count(distinct(members.c.round)).label("drawn"))
        .join(
            rounds,
            (rounds.c.run_id == members.c.run_id)
            & (rounds.c.round == members.c.round)
            & (rounds.c.attempt == members.c.attempt),
        )
        .where(members.c.participant == participant, rounds.c.kind == _TRAIN)
        .group_by(members.c.run_id)
        .subquery()
    )
    query = (
        select(runs.c.id, runs.c.name, runs.c.job_toml, runs.c.project, runs.c.rounds_released, drawn.c.drawn)
        .join(drawn, drawn.c.run_id == runs.c.id)
        .order_by(runs.c.created_at.desc(), runs.c.id)
        .limit(limit)
    )
    found = connection.execute(query).all()
    counted = _counted(connection, participant, [row.id for row in found])
    return tuple(
        Part(
            run_id=row.id,
            name=row.name,
            population=population_of_job(row.job_toml, row.project),
            drawn=row.drawn,
            counted=counted.get(row.id, 0),
            releases=row.rounds_released,
        )
        for row in found
    )


def unknown_populations(connection: Connection, project: str) -> tuple[str, ...]:
    """Populations of a project with charges of deleted runs, whose membership records no longer exist."""
    deleted = ~select(runs.c.id).where(runs.c.id == charges.c.run_id).exists()
    query = select(charges.c.population).where(charges.c.population.is_not(None), deleted).distinct()
    return tuple(
        sorted(name for name in connection.execute(query).scalars() if name and of_population(name) == project)
    )


def _counted(connection: Connection, participant: str, run_ids: Sequence[str]) -> dict[str, int]:
    """The number of the participant's reports in released sums, by run; evaluations have no sum."""
    query = (
        select(reports.c.run_id, func.count(distinct(reports.c.round)).label("counted"))
        .join(
            rounds,
            (rounds.c.run_id == reports.c.run_id)
            & (rounds.c.round == reports.c.round)
            & (rounds.c.attempt == reports.c.attempt),
        )
        .where(
            reports.c.participant == participant,
            reports.c.counted,
            reports.c.run_id.in_(run_ids),
            rounds.c.kind == _TRAIN,
        )
        .group_by(reports.c.run_id)
    )
    return {row.run_id: row.counted for row in connection.execute(query)}
