"""Queries of a privacy ledger, answered by a server or a data directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from atoll.operator.errors import BadInputError, OperatorError, require_count, where_listed
from atoll.operator.naming import run_called
from atoll.operator.paging import pages
from atoll.server.control import (
    ChargesPage,
    ChargeSummary,
    ParticipantPrivacy,
    PopulationSummary,
    RunSpending,
    value_of,
    values_of,
)
from atoll.wire.v1 import control_pb2

LATEST: Final = "latest"
"""The name for the newest run."""


@dataclass(frozen=True)
class RunLedger:
    """A private run's charges to its population.

    Attributes:
        run: the run's id.
        population: the population, with the spending of all its runs.
        charges: the run's charges, one for each release, oldest first.
    """

    run: str
    population: PopulationSummary
    charges: tuple[ChargeSummary, ...]

    @property
    def spending(self) -> RunSpending | None:
        """This run's spending; None before its first release."""
        return next((one for one in self.population.runs if one.run == self.run), None)

    @property
    def epsilon(self) -> float:
        """The epsilon spent by this run, at ``delta``; 0 before its first release."""
        return 0.0 if self.spending is None else self.spending.epsilon

    @property
    def delta(self) -> float | None:
        """The delta of ``epsilon``; None before the first release."""
        return None if self.spending is None else self.spending.delta


class LedgerQueries(ABC):
    """Queries of the ledger, built on three calls of the control API."""

    @abstractmethod
    def _list_populations(self, request: control_pb2.ListPopulationsRequest) -> control_pb2.ListPopulationsResponse:
        """Spending of populations: a page of all, or one."""

    @abstractmethod
    def _list_charges(self, request: control_pb2.ListChargesRequest) -> control_pb2.ListChargesResponse:
        """A page of the charges of a population or a run."""

    @abstractmethod
    def _get_participant_privacy(
        self, request: control_pb2.GetParticipantPrivacyRequest
    ) -> control_pb2.GetParticipantPrivacyResponse:
        """A participant's privacy over all runs."""

    @abstractmethod
    def newest_run(self) -> str | None:
        """The id of the newest run; None before the first."""

    @abstractmethod
    def _named_runs(self) -> Iterable[tuple[str, str, str]]:
        """(id, name, status) of every run, the newest first."""

    def run_named(self, run: str) -> str:
        """The id of the run with this id or name, or of the newest run for ``latest``; ids are not looked up.

        Raises:
            BadInputError: if there is no run yet, or several runs have this name.
        """
        found = self.newest_run() if run == LATEST else run_called(run, self._named_runs)
        if found is None:
            raise BadInputError("there is no run yet", "begin one with `atoll run submit JOB.toml`")
        return found

    def populations(self, *, verify: bool = False) -> tuple[PopulationSummary, ...]:
        """Spending of each population; with ``verify`` their chains are verified from the beginning."""
        answers = pages(self._list_populations, control_pb2.ListPopulationsRequest(verify=verify))
        return tuple(one for answer in answers for one in values_of(PopulationSummary, answer.populations))

    def population(self, name: str, *, verify: bool = False) -> PopulationSummary:
        """Spending of one population.

        Raises:
            OperatorError: if there is no such population.
        """
        request = control_pb2.ListPopulationsRequest(population=name, verify=verify)
        found = self._list_populations(request).populations if name else ()  # an empty name would list all populations
        if not found:
            raise OperatorError(f"there is no population {name!r}", where_listed("population.missing"))
        return value_of(PopulationSummary, found[0])

    def charges(self, population: str, *, start: int = 0) -> ChargesPage:
        """A page of a population's charges, from number ``start`` of its chain on."""
        require_count("start", start)
        return value_of(
            ChargesPage, self._list_charges(control_pb2.ListChargesRequest(population=population, start=start))
        )

    def newest_charges(self, *, population: str = "", run: str = "", limit: int) -> ChargesPage:
        """The last charges of a population, or of a run with its epsilon after each."""
        require_count("limit", limit)
        request = control_pb2.ListChargesRequest(
            population=population, run=run, limit=limit, newest=True, epsilon=bool(run)
        )
        return value_of(ChargesPage, self._list_charges(request))

    def run_ledger(self, run: str) -> RunLedger | None:
        """All charges of a run, and its spending; None for a run without privacy."""
        found: list[ChargeSummary] = []
        start: int | None = 0
        population = ""
        while start is not None:
            page = value_of(ChargesPage, self._list_charges(control_pb2.ListChargesRequest(run=run, start=start)))
            found += page.charges
            start, population = page.next_seq, page.population
        return RunLedger(run, self.population(population), tuple(found)) if population else None

    def participant_privacy(self, participant: str) -> ParticipantPrivacy:
        """A participant's privacy over all runs."""
        request = control_pb2.GetParticipantPrivacyRequest(participant=participant)
        return value_of(ParticipantPrivacy, self._get_participant_privacy(request))
