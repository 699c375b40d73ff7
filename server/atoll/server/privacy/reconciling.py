"""Compares the ledger with the models that private runs have released.

A release is written in one transaction with its charge and with the noise of the next one (``stores.release``). So
every recorded run has one charge for each released model, and its noise state has that version. A truncated ledger
disagrees, even if its counts and heads were adjusted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from sqlalchemy import Connection, func, or_, select

from atoll.server.stores.projects import qualified
from atoll.server.stores.schema import charges, models, noise_states, runs

MAX_REPORTED = 3
"""Maximum number of disagreements named in one message."""
_PAGE_RUNS = 500


@lru_cache(maxsize=1024)
def population_of_job(job_toml: str, project: str) -> str:
    """The population that a job names, even if another version accepted it; empty without a privacy section."""
    try:
        section = tomllib.loads(job_toml).get("privacy", {})
    except tomllib.TOMLDecodeError:  # the run's record is damaged, which its readers report
        return ""
    name = str(section.get("population", ""))
    return qualified(project, name) if name else ""


def named_by_jobs(connection: Connection) -> dict[str, str]:
    """Run → population, for every recorded private run."""
    noised = select(noise_states.c.run_id).where(noise_states.c.run_id == runs.c.id).exists()
    private = or_(runs.c.job_toml.like("%privacy%"), noised)
    found = connection.execute(select(runs.c.id, runs.c.job_toml, runs.c.project).where(private))
    return {row.id: name for row in found if (name := population_of_job(row.job_toml, row.project))}


def named(connection: Connection) -> frozenset[str]:
    """Populations that runs or charges name, whether or not they are listed."""
    charged = select(charges.c.population).where(charges.c.population.is_not(None)).distinct()
    return frozenset([*named_by_jobs(connection).values(), *connection.execute(charged).scalars()])


def disagreement(connection: Connection, population: str, charged: Mapping[str, int]) -> str:
    """The disagreements between a population's ledger and the releases of its runs; empty if there are none.

    Args:
        connection: to the database.
        population: its name.
        charged: number of charges by run. Charges of deleted runs remain and cannot be compared.
    """
    of_run = named_by_jobs(connection)
    ours = sorted(run for run, name in of_run.items() if name == population)
    found = [*_uncharged(connection, ours, charged), *_charged_elsewhere(connection, of_run, population, charged)]
    more = f"; {len(found) - MAX_REPORTED} more runs disagree" if len(found) > MAX_REPORTED else ""
    return "; ".join(found[:MAX_REPORTED]) + more


def _uncharged(connection: Connection, ours: Collection[str], charged: Mapping[str, int]) -> Iterator[str]:
    released, noise = _released(connection, ours), _noise(connection, ours)
    for run in ours:
        count, models_out, version = charged.get(run, 0), released[run], noise.get(run)
        if count != models_out:
            yield f"run {run} has released {models_out} models, {count} charges for them are here"
        elif version is None:
            yield f"the noise of run {run} is not on record"
        elif version != count:
            yield f"the noise of run {run} stands after {version} releases, {count} charges for them are here"


def _charged_elsewhere(
    connection: Connection, of_run: Mapping[str, str], population: str, charged: Iterable[str]
) -> Iterator[str]:
    """Disagreements of recorded runs that are charged here although their jobs name another population or none."""
    suspects = sorted(run for run in charged if of_run.get(run) != population)
    for page in _pages(suspects):
        for run in connection.execute(select(runs.c.id).where(runs.c.id.in_(page)).order_by(runs.c.id)).scalars():
            yield f"run {run} is charged here, its job names population {of_run.get(run) or 'none'}"


def _released(connection: Connection, ours: Collection[str]) -> dict[str, int]:
    """The number of models that each run has released: listed models or the run's own count, whichever is larger."""
    most: dict[str, int] = {}
    for page in _pages(ours):
        counted = func.count().label("released")
        listed = select(models.c.run_id, counted).where(models.c.version > 0, models.c.run_id.in_(page))
        count = {row.run_id: row.released for row in connection.execute(listed.group_by(models.c.run_id))}
        released = select(runs.c.id, runs.c.rounds_released).where(runs.c.id.in_(page))
        most |= {row.id: max(row.rounds_released, count.get(row.id, 0)) for row in connection.execute(released)}
    return most


def _noise(connection: Connection, ours: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for page in _pages(ours):
        query = select(noise_states.c.run_id, noise_states.c.version).where(noise_states.c.run_id.in_(page))
        found |= {row.run_id: row.version for row in connection.execute(query)}
    return found


def _pages(names: Collection[str]) -> Iterator[list[str]]:
    every = list(names)
    return (every[start : start + _PAGE_RUNS] for start in range(0, len(every), _PAGE_RUNS))
