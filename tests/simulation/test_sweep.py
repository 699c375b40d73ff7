from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.client import Model, Participant, Task, Update
from atoll.operator.comparison import Comparison
from atoll.server.control.comparing import ComparedRun
from atoll.server.jobs.changes import changed
from atoll.simulation import (
    Aggregation,
    Cohort,
    FedAdam,
    FedAvg,
    Federation,
    Job,
    JobFileError,
    ParticipantError,
    Privacy,
    RayWorkers,
    Result,
    SetupError,
    Straggler,
    compare,
    sweep,
)
from atoll.simulation.seeds import repeated

INITIAL = {"w": np.zeros(4, np.float32)}


class Seeded(Participant):
    """Moves by its seed, so that another job.seed gives another model."""

    examples = 1

    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, model: Model, task: Task) -> Update:
        del model
        if task.settings.integer("fails", 0):
            raise ValueError("asked to")
        return Update(delta={"w": np.full(4, task.seed % 97 / 97, np.float32)}, weight=1)


def judge(model: Mapping[str, Any]) -> dict[str, float]:
    return {"first": float(model["w"][0])}


FEDERATION = Federation(participants=Seeded, population=6, examples=1)
JOB = Job(rounds=2, cohort=Cohort(size=3))


def swept(grid: Mapping[str, Any] | None = None, **options: Any) -> Comparison:
    return sweep(FEDERATION, JOB, grid, initial=INITIAL, evaluate=judge, **options)


def test_a_grid_is_played_with_repeats_of_other_seeds() -> None:
    reports: list[tuple[int, int, str]] = []
    kept: list[Result | None] = []
    found = swept(
        {"optimiser.lr": [0.5, 1.0], "cohort.size": [3]},
        repeat=2,
        progress=lambda *one: reports.append(one),
        done=lambda *ended: kept.append(ended[1]),
    )
    labels = ["optimiser.lr = 0.5, cohort.size = 3", "optimiser.lr = 1, cohort.size = 3"]
    assert [run.variant for run in found.runs] == [labels[0]] * 2 + [labels[1]] * 2
    first, second, third, fourth = found.runs
    assert (first.job_seed, first.cohort_seed) == (third.job_seed, third.cohort_seed) == (0, 0)
    assert (second.job_seed, second.cohort_seed) == (fourth.job_seed, fourth.cohort_seed)
    assert len({run.model for run in found.runs}) == 4
    assert [one.runs for one in found.variants] == [2, 2]
    assert found.rows()[2]["optimiser.lr"] == 1.0
    assert (reports[-1][:2], {one[2] for one in reports}) == ((8, 8), set(labels))
    assert [one.digest for one in kept if one is not None] == [run.model for run in found.runs]
    assert all(run.sent_bytes > 0 and run.virtual_s is not None for run in found.runs)


def test_the_first_repeat_is_the_plain_run() -> None:
    job = Job(rounds=2, cohort=Cohort(size=3, seed=4), seed=5)
    plain = FEDERATION.run(job, initial=INITIAL)
    found = sweep(FEDERATION, job, initial=INITIAL, repeat=2)
    assert (found.runs[0].model, found.runs[0].job_seed, found.runs[0].cohort_seed) == (plain.digest, 5, 4)
    assert found.runs[1].model != plain.digest


def test_whole_sections_and_several_federations_are_axes() -> None:
    found = sweep(
        {"all": FEDERATION, "few": Federation(participants=Seeded, population=4, examples=1)},
        JOB,
        {"optimiser": [FedAvg(), FedAdam(lr=0.03)]},
        initial=INITIAL,
    )
    assert [run.variant for run in found.runs] == [
        f"federation = {name}, optimiser = {optimiser}"
        for name in ("all", "few")
        for optimiser in ("fedavg", "fedadam")
    ]
    row = found.rows()[3]
    assert (row["federation"], row["optimiser.name"], row["optimiser.lr"]) == ("few", "fedadam", 0.03)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"optimiser.lrr": [0.1]}, r'optimiser.lrr = 0.1: no such key; did you mean "lr"'),
        ({"lr": [0.1]}, r"no such section; did you mean \[optimiser\] lr"),
        ({"cohort.size": [3, 0]}, "cohort.size = 0"),
        ({"cohort.size": [3, 7]}, "population = 6 is smaller than a round"),
        ({"optimiser.lr": [0.1, 0.5, 0.1]}, "sweep optimiser.lr = 0.1 is there twice"),
        ({"cohort.size": []}, "allowed is a list of at least one value"),
        ({"optimiser.name": "fedavg"}, "allowed is a list of at least one value"),
        ({"job.rounds.more": [1]}, "job.rounds"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_is(grid: dict[str, Any], message: str) -> None:
    played: list[tuple[ComparedRun, Result | None]] = []
    with pytest.raises(SetupError, match=message):
        swept(grid, done=lambda *ended: played.append(ended))
    assert played == []


def test_values_may_be_numpys() -> None:
    found = swept(
        {"cohort.size": np.array([2, 3]), "training.first": [np.float32(0.5)], "training.second": [np.int64(2)]}
    )
    assert [(run.settings["cohort.size"], run.settings["training.second"]) for run in found.runs] == [(2, 2), (3, 2)]


def test_a_run_that_fails_stays_in_the_comparison_with_its_reason() -> None:
    job = Job(rounds=1, cohort=Cohort(size=2, quorum=2), straggler=Straggler(max_attempts=1))
    found = sweep(FEDERATION, job, {"training.fails": [1, 0]}, initial=INITIAL)
    failed, finished = found.runs
    assert (failed.status, finished.status) == ("failed", "finished")
    assert "abandoned" in failed.reason
    assert failed.variant == "training.fails = 1"


def test_a_sweep_with_a_folder_goes_on_where_it_ended_and_takes_more_values(tmp_path: Path) -> None:
    played: list[tuple[int, float]] = []
    calls: list[str] = []

    class Counting(Seeded):
        def fit(self, model: Model, task: Task) -> Update:
            played.append((task.round, task.settings.number("step", 0.0)))
            return super().fit(model, task)

    def stop(row: ComparedRun, result: Result | None) -> None:
        del result
        calls.append(row.variant)
        raise KeyboardInterrupt

    federation = Federation(participants=Counting, population=6, examples=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(federation, JOB, {"training.step": [1.0, 2.0]}, initial=INITIAL, folder=tmp_path, done=stop)
    assert calls == ["training.step = 1"]
    assert {step for _, step in played} == {1.0}
    before = len(played)
    found = sweep(federation, JOB, {"training.step": [1.0, 3.0]}, initial=INITIAL, folder=tmp_path, repeat=2)
    assert [run.status for run in found.runs] == ["finished"] * 4
    assert len(played) == before * 4
    assert len(list(tmp_path.iterdir())) == 4


def test_a_run_that_failed_stays_failed_in_its_folder(tmp_path: Path) -> None:
    job = Job(rounds=1, cohort=Cohort(size=2, quorum=2), straggler=Straggler(max_attempts=1), training={"fails": 1})
    reasons = [sweep(FEDERATION, job, initial=INITIAL, folder=tmp_path).runs[0].reason for _ in range(2)]
    assert reasons[0] == reasons[1]
    assert "abandoned" in reasons[0]


@pytest.mark.parametrize("kept", [pytest.param(False, marks=pytest.mark.every_case), True])
def test_runs_at_the_same_time_give_the_table_of_runs_one_after_the_other(tmp_path: Path, kept: bool) -> None:
    reports: list[tuple[int, int, str]] = []
    models: list[bytes] = []

    def done(row: ComparedRun, result: Result | None) -> None:
        assert result is not None
        models.append(result.model["w"].tobytes())
        assert result.report(tmp_path / "report.html").exists()
        assert row.model == result.digest

    options: dict[str, Any] = {"grid": {"optimiser.lr": [0.5, 1.0]}, "repeat": 2, "done": done}
    expected, in_order = swept(**options), list(models)
    models.clear()
    folder = tmp_path / "kept" if kept else None
    found = swept(**options, jobs=3, workers=1, folder=folder, progress=lambda *one: reports.append(one))
    assert [replace(one, run="", seconds=None) for one in found.runs] == [
        replace(one, run="", seconds=None) for one in expected.runs
    ]
    assert models == in_order
    assert reports[-1][:2] == (8, 8)
    assert [one[0] for one in reports] == sorted(one[0] for one in reports)
    assert not kept or len(list((tmp_path / "kept").iterdir())) == 4


def test_a_run_that_fails_beside_others_has_its_reason() -> None:
    found = swept({"training.fails": [1, 0]}, jobs=2)
    assert [one.status for one in found.runs] == ["failed", "finished"]
    assert "abandoned" in found.runs[0].reason


class Pausing(Seeded):
    """Never ends its task if it is not to fail."""

    def fit(self, model: Model, task: Task) -> Update:
        if not task.settings.integer("fails", 0):
            signal.pause()
        return super().fit(model, task)


def test_an_error_beside_other_runs_is_raised_with_its_traceback_and_ends_them() -> None:
    federation = Federation(participants=Pausing, population=6, examples=1)
    before = forks()
    with pytest.raises(ParticipantError, match="in fit"):
        sweep(federation, JOB, {"training.fails": [1, 0]}, initial=INITIAL, jobs=2, strict=True)
    assert forks() <= before


def forks() -> set[str]:
    """The processes that were forked from this one and have not ended."""
    mine = Path("/proc/self/exe").resolve()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {child for child in children if Path(f"/proc/{child}/exe").resolve() == mine}


@pytest.mark.parametrize(
    ("options", "said"),
    [({"jobs": 0}, "jobs = 0: give 1"), ({"jobs": 2, "workers": RayWorkers(2)}, "workers on Ray are for one run")],
)
def test_what_cannot_be_played_at_the_same_time_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        swept({"optimiser.lr": [0.5, 1.0]}, **options)


def test_results_are_compared_by_what_their_jobs_differ_in_or_by_name() -> None:
    results = [FEDERATION.run(changed(JOB, {"job.seed": 1, "optimiser.lr": lr}), initial=INITIAL) for lr in (0.5, 1.0)]
    assert [run.variant for run in compare(results).runs] == ["optimiser.lr = 0.5", "optimiser.lr = 1"]
    by_name = compare({"slow": results[0], "both": results})
    assert [(one.variant, one.runs) for one in by_name.variants] == [("slow", 1), ("both", 2)]
    with pytest.raises(SetupError, match="no result to compare"):
        compare([])


@pytest.mark.parametrize(
    ("results", "said"),
    [(["a"], "results has 'a', which is not a Result"), ("run", "results = 'run'"), ({"a": 3}, r"results\['a'\] = 3")],
)
def test_what_is_no_result_is_not_compared(results: Any, said: str) -> None:
    with pytest.raises(SetupError, match=f"{said}.* give "):
        compare(results)


def test_seeds_of_repeats_follow_from_the_jobs_own() -> None:
    job = Job(rounds=2, cohort=Cohort(size=3, seed=4), seed=5)
    seeds = [(one.job.seed, one.cohort.seed) for one in (repeated(job, number) for number in range(3))]
    assert seeds[0] == (5, 4)
    assert len(set(seeds)) == 3
    assert [(one.job.seed, one.cohort.seed) for one in (repeated(job, number) for number in range(3))] == seeds


def test_a_secret_draw_gets_no_seed() -> None:
    job = Job(
        rounds=2,
        cohort=Cohort(size=2, sampler="poisson", rate=0.5),
        aggregation=Aggregation(weighting="uniform"),
        privacy=Privacy(population="people", noise_multiplier=2.0, delta=1e-5, clip=1.0, mechanism="gaussian"),
    )
    assert [repeated(job, number).cohort.seed for number in range(2)] == [None, None]


def test_derived_defaults_follow_a_changed_key_and_free_settings_may_have_dots() -> None:
    made = changed(Job(rounds=2, cohort=Cohort(size=3)), {"cohort.size": 30, "training.a.b": 1})
    assert (made.cohort.quorum, made.cohort.min_available, dict(made.training)) == (20, 30, {"a.b": 1})
    with pytest.raises(JobFileError, match=r"Job: cohort.quorum = 40.*allowed are 1 to 30"):
        changed(made, {"cohort.quorum": 40})


def test_a_section_that_would_replace_the_values_of_its_own_key_is_refused() -> None:
    whole, key = {"optimiser": [FedAdam(lr=0.03)]}, {"optimiser.lr": [0.5, 1.0]}
    with pytest.raises(SetupError, match=r"sweep optimiser would undo optimiser\.lr; give optimiser before"):
        swept({**key, **whole})
    found = swept({**whole, **key})
    assert [run.settings["optimiser.lr"] for run in found.runs] == [0.5, 1.0]
    assert found.runs[0].model != found.runs[1].model


def test_a_run_that_loses_a_worker_leaves_the_other_runs() -> None:
    class Deadly(Seeded):
        def fit(self, model: Model, task: Task) -> Update:
            if task.settings.integer("deadly", 0):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().fit(model, task)

    federation = Federation(participants=Deadly, population=4, examples=1)
    found = sweep(federation, JOB, {"training.deadly": [1, 0]}, initial=INITIAL, workers=1)
    assert [run.status for run in found.runs] == ["failed", "finished"]
    assert "was killed" in found.runs[0].reason
