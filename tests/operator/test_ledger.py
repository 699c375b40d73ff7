"""Queries of the ledger that take more than one page."""

from __future__ import annotations

from typing import NoReturn

import pytest

from atoll.operator.errors import OperatorError
from atoll.operator.ledger import LedgerQueries
from atoll.wire.v1 import control_pb2


class Pages(LedgerQueries):
    """A population whose run ``r1`` has five charges, two to a page; run ``r2`` is plain."""

    def __init__(self, runs: tuple[control_pb2.RunSpending, ...] = ()) -> None:
        self.starts: list[int] = []
        self._runs = runs

    def _named_runs(self) -> tuple[tuple[str, str, str], ...]:
        return ()

    def _list_populations(self, request: control_pb2.ListPopulationsRequest) -> control_pb2.ListPopulationsResponse:
        return control_pb2.ListPopulationsResponse(
            populations=[control_pb2.PopulationSummary(population=request.population, epsilon=3.0, runs=self._runs)]
        )

    def _list_charges(self, request: control_pb2.ListChargesRequest) -> control_pb2.ListChargesResponse:
        if request.run == "r2":
            return control_pb2.ListChargesResponse()
        self.starts.append(request.start)
        charges = [
            control_pb2.ChargeSummary(run="r1", seq=seq) for seq in range(request.start, min(request.start + 2, 5))
        ]
        following = request.start + 2 if request.start + 2 < 5 else None
        return control_pb2.ListChargesResponse(charges=charges, next_seq=following, population="people")

    def _get_participant_privacy(self, request: control_pb2.GetParticipantPrivacyRequest) -> NoReturn:
        raise AssertionError(request)

    def newest_run(self) -> str:
        return "r1"


class NoPopulations(Pages):
    """A server without a private run."""

    def _list_populations(self, request: control_pb2.ListPopulationsRequest) -> control_pb2.ListPopulationsResponse:
        del request
        return control_pb2.ListPopulationsResponse()


def test_an_unknown_population_is_named() -> None:
    with pytest.raises(OperatorError, match="there is no population ''") as refused:
        NoPopulations().population("")
    assert refused.value.remedy == "`atoll privacy ledger` lists them"


def test_a_runs_ledger_has_the_charges_of_all_pages() -> None:
    source = Pages((control_pb2.RunSpending(run="r1", epsilon=2.0, delta=1e-5),))
    found = source.run_ledger("r1")
    assert found is not None
    assert source.starts == [0, 2, 4]
    assert [one.seq for one in found.charges] == [0, 1, 2, 3, 4]
    assert (found.population.population, found.epsilon, found.delta) == ("people", 2.0, 1e-5)


def test_before_the_first_release_nothing_is_spent_and_a_plain_run_has_no_ledger() -> None:
    found = Pages().run_ledger("r1")
    assert found is not None
    assert (found.spending, found.epsilon, found.delta) == (None, 0.0, None)
    assert Pages().run_ledger("r2") is None
