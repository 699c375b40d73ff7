"""The best model and early stopping in a simulation: the server's own rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from atoll.client import Evaluation, Model, Participant, ScoreHistogram, Task, Update
from atoll.operator import BadInputError
from atoll.simulation import Cohort, Federation, Job, Retention, SetupError, Stop

MODEL = {"w": np.zeros(6, np.float32)}
BEST = 3


class Peaking(Participant):
    """Adds one to every weight, and finds the model after three rounds the best one."""

    def __init__(self, number: int) -> None:
        self.examples = 1 + number

    def fit(self, model: Model, task: Task) -> Update:
        del task
        return Update(delta={"w": np.ones_like(model["w"])}, weight=self.examples)

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        del task
        return Evaluation({"loss": abs(float(model["w"][0]) - BEST)}, self.examples)


def job(**sections: Any) -> Job:
    return Job(rounds=20, cohort=Cohort(size=2), **sections)


FEDERATION = Federation(participants=Peaking, population=4)
STOP = Stop(metric="eval/loss", mode="min", patience=2)


def test_a_run_stops_early_and_has_its_best_model(tmp_path: Path) -> None:
    result = FEDERATION.run(job(stop=STOP, retention=Retention(models=1)), initial=MODEL)
    assert (result.status, result.run.rounds_released) == ("finished", 6)
    assert result.reason.startswith("stopped early: eval/loss was best with 0 after 3 rounds; the 2 models")
    assert (result.best().round, result.best().value) == (BEST, 0.0)
    assert result.best_model is not None
    np.testing.assert_array_equal(result.best_model["w"], MODEL["w"] + BEST)
    np.testing.assert_array_equal(result.model["w"], MODEL["w"] + 6)
    assert "stopped early" in result.report(tmp_path / "report.html").read_text()


def test_the_servers_evaluator_decides_too() -> None:
    stop = Stop(metric="server/loss", mode="min", patience=2)
    result = FEDERATION.run(job(stop=stop), initial=MODEL, evaluate=lambda model: {"loss": abs(model["w"][0] - BEST)})
    assert (result.run.rounds_released, result.best().round) == (BEST + 2, BEST)


def test_a_metric_of_the_server_without_an_evaluator_is_refused() -> None:
    with pytest.raises(SetupError, match=r"server/loss decides .* no evaluator of the server measures it"):
        FEDERATION.run(job(retention=Retention(best="server/loss", mode="min")), initial=MODEL)


def test_without_a_metric_there_is_no_best_model_but_one_can_be_named() -> None:
    result = FEDERATION.run(job(), initial=MODEL)
    assert result.best_model is None
    with pytest.raises(BadInputError, match="does not say which metric decides"):
        result.best()
    assert result.best("eval/loss", "min").round == BEST
    assert result.best("eval/loss", "max").round == 20


class Scoring(Peaking):
    """Its scores move apart with each round; participant 0 has positive examples alone."""

    def rows(self, rounds: float) -> tuple[list[int], list[float]]:
        spread = 0.02 * rounds
        number = self.examples - 1
        return ([1, 1], [0.5 + spread, 0.4]) if number == 0 else ([0, 1], [0.3 + 0.1 * number, 0.35 + spread])

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        del task
        return Evaluation({}, 2, scores={"auc": ScoreHistogram.of(*self.rows(float(model["w"][0])))})


def test_the_auc_of_all_participants_examples_decides() -> None:
    stop = Stop(metric="eval/auc", mode="max", patience=3)
    everyone = Job(rounds=20, cohort=Cohort(size=4), stop=stop)
    federation = Federation(participants=Scoring, population=4, examples=10)
    result = federation.run(everyone, initial=MODEL)
    labels, scores = list[int](), list[float]()
    for number in range(4):
        truth, values = Scoring(number).rows(result.best().round)
        labels += truth
        scores += values
    assert result.best().value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
