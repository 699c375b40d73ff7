from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from atoll.client import Model, Participant, Task, Update
from atoll.simulation import (
    Aggregation,
    Behaviour,
    Cohort,
    FedAdam,
    Federation,
    Job,
    ParticipantError,
    RunFailedError,
    SetupError,
    WorkerError,
)
from tests.simulation.test_federation import MODEL, Failing, Stepping

JOB = Job(
    rounds=3,
    cohort=Cohort(size=6, seed=2),
    optimiser=FedAdam(lr=0.05),
    aggregation=Aggregation(encoding="int8"),
)


class Random(Stepping):
    """Draws its update from its task's seed."""

    def fit(self, model: Model, task: Task) -> Update:
        random = np.random.default_rng(task.seed)
        weights = {name: (values + random.standard_normal(values.shape) / 8) for name, values in model.items()}
        kept = {name: values.astype(model[name].dtype) for name, values in weights.items()}
        return Update(weights=kept, weight=self.examples, metrics={"pid": float(os.getpid())})


def digest(workers: int) -> str:
    job = JOB.model_copy(update={"job": JOB.job.model_copy(update={"seed": 11})})
    return Federation(participants=Random, population=9).run(job, initial=MODEL, workers=workers).digest


def test_any_number_of_workers_gives_the_same_bits() -> None:
    assert digest(0) == digest(1) == digest(3)


def test_a_function_within_a_function_makes_participants_in_workers() -> None:
    made = {"by": Stepping}
    federation = Federation(participants=lambda number: made["by"](number % 4), population=4)
    assert federation.run(Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=2).status == "finished"


def test_a_strict_run_shows_the_traceback_of_another_process() -> None:
    federation = Federation(participants=Failing, population=4)
    with pytest.raises(ParticipantError, match=r"p1 failed in round 1:(.|\n)*in fit(.|\n)*no data today"):
        federation.run(Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, strict=True, workers=2)


def test_a_factory_that_fails_in_a_worker_is_shown() -> None:
    def make(number: int) -> Participant:
        raise LookupError(f"no folder for {number}")

    with pytest.raises(SetupError, match="no folder for"):
        Federation(participants=make, population=4).run(Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=2)


def test_a_worker_that_is_killed_ends_the_run_with_its_reason() -> None:
    class Deadly(Stepping):
        def fit(self, model: Model, task: Task) -> Update:
            if self.number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().fit(model, task)

    with pytest.raises(WorkerError, match=r"was killed .SIGKILL.; the machine may have run out of memory"):
        Federation(participants=Deadly, population=4).run(
            Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=2
        )


def test_a_worker_that_is_killed_in_a_later_round_ends_the_run_too() -> None:
    class Late(Stepping):
        def fit(self, model: Model, task: Task) -> Update:
            if task.round == 1 and self.number == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().fit(model, task)

    federation = Federation(participants=Late, population=10)
    with pytest.raises(WorkerError, match="was killed"):
        federation.run(Job(rounds=3, cohort=Cohort(size=10)), initial=MODEL, workers=2)


class Counting(Stepping):
    """Counts its tasks in a file, and sends the count."""

    def prepare(self, folder: Path) -> None:
        self.file = folder / "count"

    def fit(self, model: Model, task: Task) -> Update:
        del task
        count = int(self.file.read_text()) + 1 if self.file.exists() else 1
        self.file.write_text(str(count))
        return Update(delta={name: np.full_like(values, count) for name, values in model.items()}, weight=1)


def test_what_participants_keep_in_files_is_the_same_in_any_number_of_processes() -> None:
    job = Job(rounds=4, cohort=Cohort(size=5, seed=3))
    digests = {
        Federation(participants=Counting, population=6).run(job, initial=MODEL, workers=k).digest for k in (0, 2)
    }
    assert len(digests) == 1


class Unlucky(Counting):
    """Every fifth fails at the first attempt at a round."""

    def fit(self, model: Model, task: Task) -> Update:
        made = super().fit(model, task)
        if self.number % 5 == 0 and task.attempt == 0:
            raise ZeroDivisionError("no luck")
        return made


def test_what_participants_keep_of_abandoned_rounds_is_the_same_in_any_number_of_processes(
    request: pytest.FixtureRequest,
) -> None:
    """Workers begin tasks ahead, whose reports cannot count any more once the round is abandoned."""
    job = Job(rounds=2, seed=1, cohort=Cohort(size=60, quorum=55, seed=3))
    found = set()
    for workers in (0, 1, 2) if request.config.getoption("every_case") else (0, 2):
        slow_first = Behaviour(speed=lambda number, _: 1.0 + number)
        federation = Federation(participants=Unlucky, population=60, behaviour=slow_first)
        result = federation.run(job, initial=MODEL, workers=workers)
        members = [
            [(one.participant, one.status, one.detail) for one in each.members] for each in result.detail().rounds
        ]
        found.add((result.digest, str(members)))
        assert [one.phase for one in result.detail().rounds][:4] == ["abandoned", "released"] * 2
    assert len(found) == 1


@pytest.mark.parametrize("workers", [-1, 1000])
def test_impossible_numbers_of_workers_are_refused(workers: int) -> None:
    with pytest.raises(SetupError, match=f"workers = {workers}: give 0, for this process, to 256"):
        Federation(participants=Stepping, population=4).run(
            Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, workers=workers
        )


class OftenFailing(Stepping):
    """All but every eighth fail."""

    def fit(self, model: Model, task: Task) -> Update:
        if self.number % 8:
            raise ZeroDivisionError("no data today")
        return super().fit(model, task)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_round_that_loses_its_quorum_while_tasks_are_in_work_is_abandoned(workers: int) -> None:
    job = Job(rounds=1, cohort=Cohort(size=300, quorum=280))
    with pytest.raises(RunFailedError, match="quorum 280 can"):
        Federation(participants=OftenFailing, population=300).run(job, initial=MODEL, workers=workers)


def test_workers_end_quietly_and_close_their_participants_when_a_run_is_broken_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Closing(Failing):
        def close(self) -> None:
            (tmp_path / f"{os.getpid()} {self.number}").touch()

    job = Job(rounds=1, cohort=Cohort(size=200))
    with pytest.raises(ParticipantError, match="no data today"):
        Federation(participants=Closing, population=200, examples=1).run(job, initial=MODEL, strict=True, workers=2)
    assert len({file.name.split()[0] for file in tmp_path.iterdir()}) == 2
    assert "Traceback" not in capfd.readouterr().err
