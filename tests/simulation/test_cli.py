from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file

from atoll.simulation.cli import simulate

PEOPLE = """
import numpy as np
from atoll.client import Participant, Update

class Stepping(Participant):
    examples = 10

    def __init__(self, number):
        self.number = number

    def fit(self, model, task):
        if self.number == 7 or task.settings.integer("fails", 0):
            raise ValueError("seven")
        delta = {name: np.full(values.shape, 2.0**-6, np.float32) for name, values in model.items()}
        return Update(delta=delta, weight=10)

def judge(model):
    return {"first": float(model["w"][0])}

def judge_much(model):
    return {name: 1.0 for name in "abcdez"}
"""
JOB = """
[job]
name = "tried"
rounds = 2

[model]
initial = "initial.safetensors"

[cohort]
size = 3
"""


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls the command in a separate folder, whose participants no other test has imported."""
    monkeypatch.chdir(tmp_path)
    module = f"people_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(PEOPLE)
    (tmp_path / "job.toml").write_text(JOB)
    save_file({"w": np.zeros(4, np.float32)}, tmp_path / "initial.safetensors")

    def call(population: int | str, *options: str) -> Result:
        arguments = ["job.toml", "--participants", f"{module}:Stepping", "--population", str(population), *options]
        return CliRunner().invoke(simulate, [option.format(module=module) for option in arguments])

    return call


def test_a_job_is_played_and_its_model_and_report_written(called: Callable[..., Result], tmp_path: Path) -> None:
    done = called(5, "--workers", "2", "--evaluate", "{module}:judge", "-o", "out", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["status"], [row["reported"] for row in found["rounds"][:2]]) == ("finished", [3, 3])
    assert found["rounds"][1]["server/first"] == 2 * 2.0**-6
    model = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(model["w"], np.full(4, 2 * 2.0**-6, np.float32))
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "history.csv").read_text().startswith("round,attempt,kind,")


def test_the_table_has_a_row_for_each_round(called: Callable[..., Result]) -> None:
    done = called(5)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("released") == 2
    assert ": all rounds are done" in done.stderr  # why it ended


def test_the_metric_that_decides_has_a_column_however_many_there_are(called: Callable[..., Result]) -> None:
    done = called(
        3, "--evaluate", "{module}:judge_much", "--set", "retention.best=server/z", "--set", "retention.mode=max"
    )
    assert done.exit_code == 0, done.output
    assert [word for word in done.stdout.split() if word.startswith("server/")] == [f"server/{name}" for name in "abcz"]


def test_what_cannot_be_simulated_is_a_usage_error(called: Callable[..., Result]) -> None:
    small = called(2)
    assert (small.exit_code, "population = 2 is smaller than a round" in small.output) == (2, True)
    unknown = called(5, "--evaluate", "{module}:judges")
    assert (unknown.exit_code, "has no judges" in unknown.output) == (2, True)


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(called: Callable[..., Result]) -> None:
    result = called(3, "-o", "job.toml/results")
    assert (result.exit_code, "-o job.toml/results cannot be created: Not a directory" in result.output) == (2, True)
    assert "simulating" not in result.output


def test_a_strict_run_ends_with_the_traceback(called: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.replace("size = 3", "size = 8"))
    done = called(8, "--strict", "--examples", "10")
    assert (done.exit_code, "ValueError: seven" in done.output) == (5, True)


def test_a_sweep_is_compared_in_a_table_a_page_and_json(called: Callable[..., Result], tmp_path: Path) -> None:
    sweep = ("--sweep", "optimiser.lr=0.5,1", "--repeat", "2", "--folder", "kept")
    arguments = ("--evaluate", "{module}:judge", *sweep, "-o", "out")
    done = called(5, *arguments)
    assert done.exit_code == 0, done.output
    assert [line.split()[:4] for line in done.stdout.splitlines() if line.startswith("optimiser")] == [
        ["optimiser.lr", "=", "0.5", "2"],
        ["optimiser.lr", "=", "1", "2"],
    ]
    assert "run 004, optimiser.lr = 1: finished" in done.stderr
    assert (tmp_path / "out" / "comparison.html").read_text().startswith("<!doctype html>")
    models = [load_file(tmp_path / "out" / "runs" / f"{number:03}" / "model.safetensors") for number in range(1, 5)]
    assert [float(model["w"][0]) for model in models] == [2.0**-6] * 2 + [2 * 2.0**-6] * 2
    assert len(list((tmp_path / "kept").iterdir())) == 4
    found = json.loads(called(5, *arguments, "--json").stdout)
    assert [row["first"] for row in found["runs"]] == [2.0**-6] * 2 + [2 * 2.0**-6] * 2
    assert [one["runs"] for one in found["variants"]] == [2, 2]


def test_a_sweep_with_runs_that_fail_shows_all_and_ends_with_their_exit_code(
    called: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text(f"{JOB}quorum = 3\n[straggler]\nmax_attempts = 1\n")
    done = called(8, "--examples", "10", "--sweep", "cohort.size=3,8", "--sweep", "cohort.quorum=3,8", "-o", "out")
    assert done.exit_code == 2, done.output
    done = called(8, "--examples", "10", "--sweep", "cohort.size=8", "--sweep", "cohort.quorum=3,8", "-o", "out")
    assert done.exit_code == 5, done.output
    assert "1 of 2 runs failed; the first: the run has failed" in done.stderr
    assert done.stdout.count("cohort.quorum") == 2
    assert (tmp_path / "out" / "comparison.html").exists()


def test_a_sweep_that_is_stopped_shows_the_runs_that_have_ended(called: Callable[..., Result], tmp_path: Path) -> None:
    done = called(5, "--strict", "--sweep", "training.fails=0,1", "-o", "out")
    assert (done.exit_code, "ValueError: seven" in done.output) == (5, True)
    assert [line.split()[:4] for line in done.stdout.splitlines()[2:]] == [["training.fails", "=", "0", "1"]]
    assert (tmp_path / "out" / "comparison.html").exists()


def test_a_key_that_no_job_has_is_a_usage_error(called: Callable[..., Result]) -> None:
    done = called(5, "--sweep", "optimiser.lrr=0.5")
    assert done.exit_code == 2
    assert 'optimiser.lrr = 0.5: no such key; did you mean "lr"' in done.output


def test_other_values_for_keys_of_the_job(called: Callable[..., Result]) -> None:
    done = called(5, "--set", "job.rounds=1", "--json")
    assert done.exit_code == 0, done.output
    assert [row["kind"] for row in json.loads(done.stdout)["rounds"]].count("train") == 1
    refused = called(5, "--set", "job.rounds=0")
    assert refused.exit_code == 2
    assert "job.rounds = 0" in refused.output


def test_a_folder_keeps_the_run_and_is_for_one(called: Callable[..., Result], tmp_path: Path) -> None:
    digests = {json.loads(called(4, "--folder", "kept", "--json").stdout)["digest"] for _ in range(2)}
    assert len(digests) == 1
    assert (tmp_path / "kept" / "atoll.sqlite3").exists()
    other = called(5, "--folder", "kept")
    assert other.exit_code != 0
    assert "population was 4 and is 5" in " ".join(other.output.split())
    swept = called(4, "--folder", "kept", "--repeat", "2")
    assert swept.exit_code != 0
    assert "has the state of one run" in " ".join(swept.output.split())


def test_participants_are_named_by_the_lines_of_a_file(called: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("# of the deployment\np2fftrnwqvgb7\n\npm666cyfbordu\npq\n")
    done = called("ids.txt", "--folder", "kept", "--json")
    assert done.exit_code == 0, done.output
    again = called("ids.txt", "--folder", "kept")
    assert json.loads(done.stdout)["digest"] in again.stderr
    (tmp_path / "ids.txt").write_text("p2fftrnwqvgb7\np2fftrnwqvgb7\n")
    twice = called("ids.txt")
    assert (twice.exit_code, "2 names, 1 different" in twice.output) == (2, True)
    for population, said in (("0", "population = 0: give at least 1"), ("no.txt", "no.txt' is neither a number")):
        wrong = called(population)
        assert (wrong.exit_code, said in " ".join(wrong.output.split())) == (2, True), wrong.output


def test_virtual_seconds_are_shown_where_they_pass(called: Callable[..., Result], tmp_path: Path) -> None:
    assert "virtual" not in called(3).output
    assert "virtual" not in called(3, "--repeat", "2").output
    (tmp_path / "trace.csv").write_text("participant,online_s,offline_s,task_s\np0,0,,5\np1,0,,5\np2,0,,7.5\n")
    assert "virtual s" in called(3, "--trace", "trace.csv").stdout
    assert "virtual" in called(3, "--trace", "trace.csv", "--repeat", "2").stdout
