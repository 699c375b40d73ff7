"""The privacy ledger of a server, by calls to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from atoll.operator.ledger import LedgerQueries
from atoll.server.control import PopulationSummary, RunSummary, value_of, values_of
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from atoll.operator.calls import Calls


class ServerLedger(LedgerQueries):
    """Queries of a server's ledger; also lists its runs, to resolve names."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._control = calls.control

    def newest_run(self) -> str | None:
        """The id of the newest run; None before the first."""
        return next((run.run for run in self._runs(1)), None)

    def limit_population(
        self,
        population: str,
        limit: tuple[float, float] | None,
        *,
        create: bool = False,
        unit: Literal["participant", "row"] = "participant",
    ) -> PopulationSummary:
        """Limit the total spending of a population's runs.

        Args:
            population: its name.
            limit: (epsilon, delta); None removes the limit.
            create: whether to create a population that has no run yet.
            unit: privacy unit of a created population.
        """
        epsilon, delta = (None, None) if limit is None else limit
        adjacency = "add_remove_row" if unit == "row" else "add_remove"
        request = control_pb2.LimitPopulationRequest(
            population=population, epsilon=epsilon, delta=delta, adjacency=adjacency if create else ""
        )
        answer = self._calls.call(self._control.LimitPopulation, request, self._calls.timeouts.ledger_s)
        return value_of(PopulationSummary, answer.population)

    def _runs(self, page: int) -> Iterator[RunSummary]:
        """The runs, newest first; ``page`` at a time (0: the server's default)."""
        for answer in self._calls.pages(self._control.ListRuns, control_pb2.ListRunsRequest(limit=page)):
            yield from values_of(RunSummary, answer.runs)

    def _named_runs(self) -> Iterator[tuple[str, str, str]]:
        return ((run.run, run.name, run.status) for run in self._runs(0))

    def _list_populations(self, request: control_pb2.ListPopulationsRequest) -> control_pb2.ListPopulationsResponse:
        return self._calls.call(self._control.ListPopulations, request, self._calls.timeouts.ledger_s)

    def _list_charges(self, request: control_pb2.ListChargesRequest) -> control_pb2.ListChargesResponse:
        return self._calls.call(self._control.ListCharges, request, self._calls.timeouts.ledger_s)

    def _get_participant_privacy(
        self, request: control_pb2.GetParticipantPrivacyRequest
    ) -> control_pb2.GetParticipantPrivacyResponse:
        return self._calls.call(self._control.GetParticipantPrivacy, request, self._calls.timeouts.ledger_s)
