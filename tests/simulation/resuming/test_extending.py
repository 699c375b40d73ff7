"""A simulation whose run has ended continues when more rounds are requested."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atoll.simulation import Behaviour, Cohort, Evaluation, FedAdam, Job, SetupError, Stop
from tests.simulation.resuming.scenarios import KILLED, busy, facts, killed_at, played, private

CLUMSY = Behaviour(speed=lambda number, at: 10.0 + (3 * number + at) % 8, dropout=0.3, back_s=1.0, seed=3)
"""Participants that are always there, and lose some of their work."""


def evaluated_last(rounds: int) -> Job:
    """A final evaluation, which takes a number, before an extension too."""
    cohort = Cohort(size=3, seed=5, over_selection=2.0, quorum=1, min_available=8)
    return Job(rounds=rounds, seed=11, cohort=cohort, optimiser=FedAdam(lr=0.1), evaluation=Evaluation(final=True))


@pytest.fixture(scope="module")
def in_one_go() -> dict[str, Any]:
    """The simulation of all rounds, without a pause."""
    return facts(played(busy(4)))


def test_more_rounds_give_the_bits_of_a_simulation_with_all_of_them(tmp_path: Path, in_one_go: dict[str, Any]) -> None:
    assert played(busy(2), folder=tmp_path).history.detail.run.rounds_released == 2
    found = played(busy(4), folder=tmp_path)
    assert facts(found) == in_one_go
    assert (found.run.rounds_total, found.run.extended_after) == (4, (2,))
    again = played(busy(4), folder=tmp_path)
    assert facts(again) == facts(found)


def test_a_final_evaluation_in_between_leaves_the_models_as_they_are(tmp_path: Path) -> None:
    expected = played(evaluated_last(4), CLUMSY)
    played(evaluated_last(2), CLUMSY, folder=tmp_path)
    found = played(evaluated_last(4), CLUMSY, folder=tmp_path)
    assert found.digest == expected.digest
    kinds = [(one.round, one.kind, one.version) for one in found.history.detail.rounds if one.released]
    trains = [(0, "train", 0), (1, "train", 1), (2, "evaluate", 2), (3, "train", 2), (4, "train", 3)]
    assert kinds == [*trains, (5, "evaluate", 4)]


APPENDS = [1, 10, 19, *(pytest.param(one, marks=pytest.mark.every_fault) for one in (4, 7, 13, 16))]


@pytest.mark.parametrize("append", APPENDS)
def test_killed_in_its_further_rounds_it_goes_on_with_the_same_bits(
    tmp_path: Path, append: int, in_one_go: dict[str, Any]
) -> None:
    played(busy(2), folder=tmp_path)
    assert killed_at(append, partial(played, busy(4), folder=tmp_path), stored=append % 2 == 0) == KILLED
    assert facts(played(busy(4), folder=tmp_path)) == in_one_go


def test_a_run_that_stopped_early_goes_on_to_the_rounds_that_are_asked_for(tmp_path: Path) -> None:
    def job(rounds: int) -> Job:
        stop = Stop(metric="server/mean", mode="max", patience=1, min_delta=1e6)
        return Job(rounds=rounds, seed=11, cohort=Cohort(size=3, seed=5), optimiser=FedAdam(lr=0.1), stop=stop)

    stopped = played(job(5), CLUMSY, folder=tmp_path).run
    assert (stopped.rounds_released, stopped.rounds_total) == (2, 5)
    longer = played(job(6), CLUMSY, folder=tmp_path).run
    assert (longer.rounds_released, longer.rounds_total, longer.extended_after) == (3, 6, (2,))


def test_fewer_rounds_are_another_simulation(tmp_path: Path) -> None:
    played(busy(2), folder=tmp_path)
    with pytest.raises(SetupError, match=r"job\.job\.rounds was 2 and is 1"):
        played(busy(1), folder=tmp_path)


def test_more_rounds_and_another_setting_are_another_simulation(tmp_path: Path) -> None:
    played(evaluated_last(1), CLUMSY, folder=tmp_path)
    other = evaluated_last(2).model_copy(update={"optimiser": FedAdam(lr=0.2)})
    with pytest.raises(SetupError, match=r"job\.optimiser\.lr was 0\.1 and is 0\.2; ask for"):
        played(other, CLUMSY, folder=tmp_path)


def test_a_private_simulation_has_noise_for_its_rounds_alone(tmp_path: Path) -> None:
    played(private("blt", 2), folder=tmp_path)
    with pytest.raises(SetupError, match=r"job\.job\.rounds was 2 and is 3"):
        played(private("blt", 3), folder=tmp_path)
