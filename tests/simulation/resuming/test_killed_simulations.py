"""A simulation that is killed at any moment continues, and ends with the bits of one that was not killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from atoll.simulation import Job
from tests.patience import WAIT_S
from tests.simulation.resuming.scenarios import KILLED, SECRET, asynchronous, busy, facts, killed_at, played, private

JOBS: dict[str, Callable[[], Job]] = {
    "busy": busy,
    "kept noise": partial(private, "blt"),
    "secret draws": partial(private, "poisson"),
    "late reports": asynchronous,
}
SEED = 5
STEP = 9
"""A simulation is killed at one in this many writes, and with --every-fault at each."""


@pytest.fixture(autouse=True)
def known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise and the same secret draws in every process."""
    monkeypatch.setattr("atoll.server.privacy.run.new_secret", lambda: bytes.fromhex(SECRET))
    monkeypatch.setattr("atoll.server.runs.cohort.secrets.randbits", lambda _: SEED)


def check_cuts(job: Job, folder: Path, step: int) -> None:
    """Kill a simulation at some of its writes, and compare what it ends with."""
    expected, append = facts(played(job)), 2
    while killed_at(append, partial(played, job, folder=folder / str(append)), stored=append % 2 == 0) == KILLED:
        assert facts(played(job, folder=folder / str(append))) == expected, f"killed at write {append}"
        append += step
    assert append > 2 + step


@pytest.mark.parametrize("name", JOBS)
def test_killed_at_its_writes_a_simulation_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    check_cuts(JOBS[name](), tmp_path, STEP)


@pytest.mark.every_fault
@pytest.mark.parametrize("name", JOBS)
def test_killed_at_any_write_a_simulation_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    check_cuts(JOBS[name](), tmp_path, 1)


@pytest.mark.parametrize("name", ["busy", pytest.param("late reports", marks=pytest.mark.every_case)])
def test_killed_again_and_again_it_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    """Each process gets at least to the next commit, so the second one does not start from the beginning."""
    expected, deaths = facts(played(JOBS[name]())), 0
    while killed_at(14, partial(played, JOBS[name](), folder=tmp_path), stored=True) == KILLED:
        deaths += 1
    assert deaths >= 2
    assert facts(played(JOBS[name](), folder=tmp_path)) == expected


@pytest.mark.parametrize("workers", [pytest.param((2, 0), marks=pytest.mark.every_case), (0, 3)])
def test_late_reports_are_carried_over_a_kill_to_another_number_of_workers(
    tmp_path: Path, workers: tuple[int, int]
) -> None:
    """Updates that wait for a later round are computed again, in the worker whose sum will include them."""
    before, after = workers
    job = asynchronous(8)
    expected = facts(played(job))
    assert killed_at(30, partial(played, job, folder=tmp_path, workers=before), stored=True) == KILLED
    assert facts(played(job, folder=tmp_path, workers=after)) == expected


PROGRAM = """
import sys
from tests.simulation.resuming.scenarios import Remembering, busy, played

def announced(fit):
    def announce(self, model, task):
        sys.stdout.write("working\\n")
        sys.stdout.flush()
        return fit(self, model, task)
    return announce

Remembering.fit = announced(Remembering.fit)
played(busy(), folder=sys.argv[1], workers=2)
"""


@pytest.mark.parametrize("tasks", [pytest.param(2, marks=pytest.mark.every_fault), 6])
def test_killed_with_its_workers_at_work_it_goes_on(tmp_path: Path, tasks: int) -> None:
    expected = facts(played(busy()))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        for _ in range(tasks):
            assert process.stdout.readline() == "working\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        assert facts(played(busy(), folder=tmp_path, workers=2)) == expected
