"""Runs of statistics in a simulation: the whole engine, without a port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from atoll.client import Model, Participant, Task, Update
from atoll.operator import Cohort, Job, Statistics
from atoll.operator.errors import BadInputError
from atoll.simulation import Federation, RunFailedError, SetupError
from atoll.simulation.cli import simulate
from atoll.statistics import Findings

TABLES = [np.random.default_rng(seed).normal(50 + 10 * seed, 5, 40 + seed) for seed in range(4)]


class Hospital(Participant):
    def __init__(self, number: int) -> None:
        self.number = number

    def table(self) -> dict[str, Any]:
        return {"age": TABLES[self.number], "sex": ["f" if age > 60 else "m" for age in TABLES[self.number]]}


JOB = Job(cohort=Cohort(size=4), statistics=Statistics(numeric=("age",), categories={"sex": ("f", "m")}))


def test_a_simulation_gives_the_figures_of_all_rows() -> None:
    result = Federation(Hospital, 4).run(JOB, strict=True)
    found, pooled = result.statistics(), np.concatenate(TABLES)
    age = found.column("age")
    assert (found.participants, found.rows, age.count) == (4, pooled.size, pooled.size)
    assert age.mean == pytest.approx(pooled.mean(), rel=1e-12)
    assert age.variance == pytest.approx(pooled.var(ddof=1), rel=1e-12)
    median = age.quantile(0.5)
    assert median.low is not None
    assert median.high is not None
    assert median.low <= np.quantile(pooled, 0.5, method="inverted_cdf") <= median.high
    assert found.categories[0].counts == {"f": int((pooled > 60).sum()), "m": int((pooled <= 60).sum())}
    assert not result.model["answer"].any()


def test_figures_of_labels_come_with_the_run_and_its_report(tmp_path: Path) -> None:
    asked = Statistics(numeric=("age",), categories={"sex": ("f", "m")}, by="sex")
    result = Federation(Hospital, 4).run(Job(cohort=Cohort(size=4), statistics=asked), strict=True)
    pooled = np.concatenate(TABLES)
    older = result.statistics().column("age").group("f")
    assert older.count == (pooled > 60).sum()
    assert older.mean == pytest.approx(pooled[pooled > 60].mean(), rel=1e-12)
    page = result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{older.mean:.6g}" in page


def test_a_run_of_training_has_no_statistics() -> None:
    class Still(Participant):
        def __init__(self, number: int) -> None: ...

        def fit(self, model: Model, task: Task) -> Update:
            del task
            return Update(weights=model, weight=1)

    result = Federation(Still, 1).run(Job(rounds=1, cohort=Cohort(size=1)), initial={"w": np.zeros(2, np.float32)})
    with pytest.raises(BadInputError, match="has no statistics"):
        result.statistics()


def test_a_hospital_without_the_column_ends_the_run_with_its_name_and_reason() -> None:
    class Other(Hospital):
        def table(self) -> dict[str, Any]:
            table = super().table()
            return table if self.number else {"sex": table["sex"]}

    names = ["north", "east", "south", "west"]
    with pytest.raises(RunFailedError, match=r"north.*the table has no column 'age'"):
        Federation(lambda name: Other(names.index(name)), names).run(JOB)


def test_a_cohort_of_some_is_refused_before_anything_is_asked() -> None:
    words = r"population = 4 is larger than cohort.size 3: .*; set cohort.size = 4, or name 3"
    with pytest.raises(SetupError, match=words):
        Federation(Hospital, 4).run(Job(cohort=Cohort(size=3), statistics=JOB.statistics))


def test_a_table_that_grows_during_the_run_ends_it() -> None:
    class Growing(Hospital):
        calls = 0

        def table(self) -> dict[str, Any]:
            type(self).calls += 1
            ages = TABLES[self.number][: 30 + type(self).calls]
            return {"age": ages, "sex": ["f"] * ages.size}

    with pytest.raises(RunFailedError, match="participants or their tables changed during the run"):
        Federation(Growing, 4).run(JOB)


def test_the_command_line_prints_and_keeps_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB.to_toml())
    arguments = ["job.toml", "--participants", f"{__name__}:Hospital", "--population", "4", "-o", "out"]
    done = CliRunner().invoke(simulate, arguments)
    assert done.exit_code == 0, done.output
    found = Findings.load(tmp_path / "out" / "statistics.json")
    assert f"{found.rows} rows of 4 participants" in done.output
    assert f"{found.column('age').mean:.6g}" in done.output


def test_a_job_with_statistics_takes_no_model() -> None:
    with pytest.raises(SetupError, match="begins with its own model"):
        Federation(Hospital, 4).run(JOB, initial={"w": np.zeros(2)})
