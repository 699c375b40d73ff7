"""Simulated runs in other tools: the methods of deployed runs, on a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

from atoll.client import Model, Participant, Task, Update
from atoll.operator import Aggregation, BadInputError, Cohort, History, Job, Privacy, Statistics
from atoll.simulation import Federation, Result
from atoll.text.figures import bound

ZEROS = {"w": np.zeros(3, np.float32)}


class Stepping(Participant):
    examples = 1

    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, model: Model, task: Task) -> Update:
        del task
        return Update(weights={"w": model["w"] + np.float32(0.01)}, weight=1)

    def table(self) -> dict[str, Any]:
        return {"age": [40.0 + self.number] * 30}


@pytest.fixture(scope="module")
def private() -> Result:
    privacy = Privacy(population="people", noise_multiplier=2.0, delta=1e-5, clip=1.0, mechanism="gaussian")
    job = Job(
        name="private",
        rounds=2,
        cohort=Cohort(size=2, sampler="poisson", rate=0.5),
        aggregation=Aggregation(weighting="uniform"),
        privacy=privacy,
    )
    return Federation(Stepping, population=6, examples=1).run(job, initial=ZEROS)


def test_the_card_of_a_private_run_states_what_its_ledger_states(private: Result, tmp_path: Path) -> None:
    private.export(tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert private.ledger is not None
    assert f"epsilon at most {bound(private.ledger.epsilon)} at delta 1e-05" in text
    for line in ("| mechanism | gaussian |", "| noise multiplier | 2 |", "| clip norm | 1 |", "| unit | participant |"):
        assert line in text
    card: Any = ModelCard(text).data
    assert "differential-privacy" in card.tags


def test_a_card_says_that_participants_were_simulated(private: Result, tmp_path: Path) -> None:
    private.export(tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "The model after 2 rounds of a simulation of federated training" in text
    assert "stayed with the participants" not in text


def test_a_card_shows_the_statistics_of_another_run(private: Result, tmp_path: Path) -> None:
    asked = Job(cohort=Cohort(size=3), statistics=Statistics(numeric=("age",)))
    overview = Federation(Stepping, 3).run(asked)
    private.export(tmp_path / "model", data=overview.statistics())
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "90 rows of 3 participants" in text
    assert "| age | 90 | 0 | 41 |" in text
    assert (tmp_path / "model" / "statistics.json").is_file()
    with pytest.raises(BadInputError, match="is one of statistics and has no model"):
        overview.export(tmp_path / "answers")
    assert not (tmp_path / "answers").exists()


def test_a_simulation_keeps_two_models(private: Result, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="which = 1; a simulation keeps two models"):
        private.export(tmp_path / "model", 1)
    with pytest.raises(BadInputError, match="does not say which metric decides"):
        private.export(tmp_path / "model", "best")
    assert list(tmp_path.iterdir()) == []


def test_participants_are_rows(private: Result) -> None:
    rows = History(private.detail()).table(by_participant=True).records()
    assert {row["participant"] for row in rows} <= {f"p{number}" for number in range(6)}
    with pytest.raises(BadInputError, match="without participants"):
        private.history.table(by_participant=True)
