"""Answers that are fetched again, and answers that are kept."""

from __future__ import annotations

import pytest

from atoll.console.reading import MAX_KEPT_RUNS, MAX_RECENT_MEMBERS, MAX_RECENT_ROUNDS, Reader
from atoll.operator import Operator
from atoll.wire.v1 import control_pb2
from tests.console.study import Study
from tests.server.cli.conftest import Fake, a_round, asked_for


class Noting(Study):
    """Notes (with members, since) of each request for a run."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[bool, int]] = []

    def GetRun(self, request: control_pb2.GetRunRequest, context: object) -> control_pb2.GetRunResponse:  # noqa: N802
        self.noted.append((request.members, request.since))
        return super().GetRun(request, context)


@pytest.fixture
def control() -> Noting:
    return Noting()


def test_only_new_rounds_are_fetched_with_their_members(fake: Fake, control: Noting) -> None:
    control.rounds = [a_round(number) for number in range(30)]
    with Operator.connect(fake.address, insecure=True) as operator:
        known = Reader(operator).run("rabc")
        first = known.recent(known.refreshed())
        assert [item.round for item in first] == list(range(10, 30))
        assert known.recent(known.refreshed()) == first
        control.rounds.append(a_round(30))
        again = known.recent(known.refreshed())
    assert [item.round for item in again] == list(range(11, 31))
    assert all(item.members for item in again)
    assert control.noted == [(False, 0), (True, 10), (False, 29), (False, 29), (True, 30)]


def test_few_rounds_of_many_members_are_looked_through(fake: Fake, control: Noting) -> None:
    control.rounds = [a_round(number, cohort=MAX_RECENT_MEMBERS // 2) for number in range(9)]
    with Operator.connect(fake.address, insecure=True) as operator:
        known = Reader(operator).run("rabc")
        assert [item.round for item in known.recent(known.refreshed())] == [7, 8]
        control.rounds.append(a_round(9, cohort=3 * MAX_RECENT_MEMBERS))
        assert [item.round for item in known.recent(known.refreshed())] == [9]


def test_a_round_in_work_is_not_among_them(fake: Fake, control: Noting) -> None:
    control.rounds = [a_round(0), a_round(1, phase="open")]
    with Operator.connect(fake.address, insecure=True) as operator:
        known = Reader(operator).run("rabc")
        assert [item.round for item in known.recent(known.refreshed())] == [0]
        control.rounds = [a_round(0, phase="open")]
        other = Reader(operator).run("rabc")
        assert other.recent(other.refreshed()) == ()
    assert MAX_RECENT_ROUNDS > 1


def test_the_runs_that_were_looked_at_last_are_kept(fake: Fake) -> None:
    with Operator.connect(fake.address, insecure=True) as operator:
        reader = Reader(operator)
        names = [f"r{'abcdefghijklmnopqrstuvwxyz'[number]}{'a' * 11}" for number in range(MAX_KEPT_RUNS + 1)]
        first = [reader.run(name) for name in names[:-1]]
        assert reader.run(names[0]) is first[0]
        reader.run(names[-1])
        assert reader.run(names[0]) is first[0]
        assert reader.run(names[1]) is not first[1]
    assert asked_for(fake, control_pb2.GetRunRequest) == []
