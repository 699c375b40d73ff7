"""Who may use the folder of a simulation, and for what."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atoll.client import Model, Participant, Task, Update
from atoll.simulation import (
    Behaviour,
    Cohort,
    EvaluateError,
    FedAvg,
    Federation,
    Job,
    ParticipantError,
    RunFailedError,
    SetupError,
    Straggler,
)
from tests.simulation.test_federation import MODEL, Failing, Stepping


def run(folder: Path, **options: Any) -> str:
    """Play two rounds of four participants, or what the options say."""
    optimiser = options.pop("optimiser", FedAvg())
    job = options.pop("job", None) or Job(rounds=2, cohort=Cohort(size=4, seed=5), optimiser=optimiser)
    given: dict[str, Any] = {"participants": Stepping, "population": 4}
    given |= {name: options.pop(name) for name in (*given, "behaviour", "examples") if name in options}
    return Federation(**given).run(job, **{"initial": MODEL, "folder": folder, **options}).digest


def test_a_folder_gives_its_result_again_without_any_work(tmp_path: Path) -> None:
    made: list[int] = []

    def make(number: int) -> Participant:
        made.append(number)
        return Stepping(number)

    first = run(tmp_path / "new" / "folder", participants=make)
    work = len(made)
    assert run(tmp_path / "new" / "folder", participants=make) == first
    assert len(made) == work > 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"population": 5}, r"population was 4 and is 5"),
        ({"optimiser": FedAvg(lr=0.5)}, r"job\.optimiser\.lr was 1\.0 and is 0\.5"),
        ({"participants": Failing}, r"participants was '.*Stepping' and is '.*Failing'"),
        ({"examples": 3}, r"examples was None and is 3"),
        ({"initial": {"w": MODEL["w"]}}, r"initial\['b'\] was 'float64\[2\]' and is None; the values"),
        ({"initial": {**MODEL, "w": MODEL["w"] + 1}}, r"the values of initial was"),
        ({"evaluate": lambda _: 0.0}, r"evaluate was None and is '.*lambda"),
        ({"behaviour": Behaviour(dropout=0.5)}, r"behaviour\.dropout was 0\.0 and is 0\.5"),
        ({"behaviour": Behaviour(availability=lambda _: [(0, 9)])}, r"behaviour\.availability was None"),
        ({"behaviour": Behaviour(speed=lambda number, _: 1.0 * number)}, r"behaviour\.speed was 0\.0"),
    ],
)
def test_a_folder_refuses_another_simulation_and_says_what_differs(
    tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    run(tmp_path)
    with pytest.raises(SetupError, match=f"holds another simulation: .*{message}"):
        run(tmp_path, **asked)


def test_a_folder_is_for_one_process(tmp_path: Path) -> None:
    run(tmp_path)
    with (tmp_path / "simulation.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SetupError, match=f"is in use by process {os.getpid()}"):
            run(tmp_path)


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "atoll.sqlite3", "data.csv", "thesis.tex"):
        (tmp_path / name).write_bytes(b"of a server")
    expected = r"has atoll\.sqlite3, data\.csv, notes\.txt and 1 more, and no simulation .* give an empty folder"
    with pytest.raises(SetupError, match=expected):
        run(tmp_path)
    assert (tmp_path / "atoll.sqlite3").read_bytes() == b"of a server"
    assert not (tmp_path / "simulation.lock").exists()


def test_hidden_files_of_a_folder_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*")
    run(tmp_path)
    assert (tmp_path / ".gitignore").exists()


def test_an_evaluation_that_raised_is_made_again_once_it_is_mended(tmp_path: Path) -> None:
    """The round that it did not judge is not committed, not even the last one."""
    mended = False

    def judge(model: Mapping[str, Any]) -> float:
        if not mended and float(model["b"][0]) > 0.03:
            raise ZeroDivisionError("not mended")
        return float(model["b"][0])

    def play(folder: Path) -> list[float]:
        job = Job(rounds=2, cohort=Cohort(size=4, seed=5))
        federation = Federation(participants=Stepping, population=4)
        return federation.run(job, initial=MODEL, evaluate=judge, folder=folder).history.metric("server/score")

    with pytest.raises(EvaluateError, match="evaluate raised ZeroDivisionError: not mended"):
        play(tmp_path / "kept")
    mended = True
    assert play(tmp_path / "kept") == play(tmp_path / "other")
    assert len(play(tmp_path / "other")) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="file/folder cannot be used: Not a directory"):
        run(tmp_path / "file" / "folder")


class Broken(Stepping):
    """Fails in the second round, until it is mended."""

    mended = False

    def fit(self, model: Model, task: Task) -> Update:
        if task.round and not self.mended:
            raise ZeroDivisionError("not mended")
        return super().fit(model, task)


def test_a_simulation_that_stopped_at_an_error_goes_on_once_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ParticipantError, match="not mended"):
        run(tmp_path, participants=Broken, strict=True)
    monkeypatch.setattr(Broken, "mended", True)
    assert run(tmp_path, participants=Broken, strict=True) == run(tmp_path / "other")


def test_a_run_that_failed_has_failed_the_next_time_too(tmp_path: Path) -> None:
    job = Job(rounds=1, cohort=Cohort(size=4, quorum=4), straggler=Straggler(max_attempts=1))
    for _ in range(2):
        with pytest.raises(RunFailedError, match="quorum 4"):
            run(tmp_path, participants=Failing, job=job)
