"""A private job's promise: checked and stored when its run is submitted, and loaded after a restart."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from atoll.server.aggregation import GridError
from atoll.server.errors import CorruptDataError, InvalidRequestError
from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.jobs import JobSpec, Statistics
from atoll.server.privacy import ledger
from atoll.server.privacy.deriving import contract_of
from atoll.server.privacy.noise import warm
from atoll.server.privacy.plan_check import check_plan
from atoll.server.privacy.run import PrivateRun
from atoll.server.privacy.statistics_plan import plan_under
from atoll.server.runs.driver import RunDriver
from atoll.server.runs.private.budgets import Budgets
from atoll.server.runs.private.cautions import warnings_of
from atoll.server.runs.private.differential_privacy import DifferentialPrivacy
from atoll.server.runs.run_privacy import Promise
from atoll.server.runs.services import Services
from atoll.server.stores import noise_states, projects
from atoll.server.stores.noise_states import NoiseRecord
from atoll.server.stores.projects import MAX_POPULATION_CHARS


class PrivatePromise(Promise):
    """See ``Promise``: the contract of a run, and the state of its noise."""

    def __init__(self, private: PrivateRun, statistics: Statistics | None = None) -> None:
        self._private = private
        self._statistics = statistics

    def kept_bytes(self, elements: int) -> int:
        """See ``Promise``: noise that later rounds need."""
        return self._private.kept_bytes(elements)

    def check_plan(self, connection: Connection) -> None:
        """See ``Promise``: all rounds must fit under the limit of the population."""
        check_plan(connection, self._private.contract)

    def warnings(self, connection: Connection, elements: int, project: str) -> tuple[str, ...]:
        """See ``Promise``: noise that outweighs the signal, participation limits reached too early."""
        if self._statistics is not None:
            return tuple(plan_under(self._private.contract, self._statistics).warnings())
        return tuple(warnings_of(connection, self._private.contract, elements, project))

    def store(self, connection: Connection, run_id: str, now: float) -> None:
        """See ``Promise``.

        Raises:
            AdjacencyError: if the population was promised another adjacency.
        """
        ledger.enrol(connection, self._private.contract, now)
        noise_states.add(connection, NoiseRecord(run_id, self._private.state.version, self._private.to_text()))

    def privacy(self, driver: RunDriver, services: Services, budgets: Budgets, spec: JobSpec) -> DifferentialPrivacy:
        """See ``Promise``."""
        return DifferentialPrivacy(driver, self._private, services, budgets, planned=spec.cohort.size)


def promise_of(spec: JobSpec, elements: int, project: str = DEFAULT_PROJECT) -> Promise:
    """The promise of a job, before its first release. Takes seconds for a private job.

    Args:
        spec: the job.
        elements: maximum number of elements that one round updates.
        project: of the run, which the population belongs to.

    Raises:
        InvalidRequestError: if no noise keeps the promise, the noise cannot be drawn, or it does not fit in the sum.
    """
    contract = contract_of(spec)
    if contract is None:
        return Promise()
    contract = replace(contract, population=_population(project, contract.population))
    run = PrivateRun.begin(contract, contract.epsilon_after(contract.rounds))
    warm()  # now, so that the first round does not wait for it
    try:
        run.rehearse(elements, spec.aggregation.max_abs)
    except GridError as error:
        raise InvalidRequestError("job.privacy", error.detail.message, error.detail.remedy) from error
    except (ValueError, OverflowError) as error:
        remedy = "change privacy.noise_multiplier, the clip norm or adaptive.count_noise"
        raise InvalidRequestError("job.privacy", f"this noise cannot be drawn: {error}", remedy) from error
    return PrivatePromise(run, spec.statistics)


def _population(project: str, name: str) -> str:
    """The full name of a job's population.

    Raises:
        InvalidRequestError: if it is too long together with the project's.
    """
    full = projects.qualified(project, name)
    if len(full) > MAX_POPULATION_CHARS:
        raise InvalidRequestError(
            "job.population",
            f"privacy.population: {full!r} has {len(full)} characters with its project; at most {MAX_POPULATION_CHARS}",
            "shorten the population's name",
        )
    return full


def find_promise(connection: Connection, run_id: str, spec: JobSpec) -> Promise:
    """Load the state that ``Promise.store`` or the run's last release stored.

    Raises:
        CorruptDataError: if it is missing or damaged.
    """
    if spec.privacy is None:
        return Promise()
    found = noise_states.find(connection, run_id)
    if found is None:
        raise CorruptDataError(
            "privacy.state", f"the noise of run {run_id} is not on record", "restore the database from a backup"
        )
    return PrivatePromise(PrivateRun.from_text(found.body))
