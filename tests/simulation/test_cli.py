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
        if self.number == 7:
            raise ValueError("seven")
        delta = {name: np.full(values.shape, 2.0**-6, np.float32) for name, values in model.items()}
        return Update(delta=delta, weight=10)

def judge(model):
    return {"first": float(model["w"][0])}
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
    """Calls the command in a folder of its own, whose participants no other test has imported."""
    monkeypatch.chdir(tmp_path)
    module = f"people_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(PEOPLE)
    (tmp_path / "job.toml").write_text(JOB)
    save_file({"w": np.zeros(4, np.float32)}, tmp_path / "initial.safetensors")

    def call(population: int, *options: str) -> Result:
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


def test_the_table_has_a_row_for_each_round(called: Callable[..., Result]) -> None:
    done = called(5)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("released") == 2


def test_what_cannot_be_simulated_is_a_usage_error(called: Callable[..., Result]) -> None:
    small = called(2)
    assert (small.exit_code, "population = 2 is smaller than a round" in small.output) == (2, True)
    unknown = called(5, "--evaluate", "{module}:judges")
    assert (unknown.exit_code, "has no judges" in unknown.output) == (2, True)


def test_a_strict_run_ends_with_the_traceback(called: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.replace("size = 3", "size = 8"))
    done = called(8, "--strict", "--examples", "10")
    assert (done.exit_code, "ValueError: seven" in done.output) == (5, True)
