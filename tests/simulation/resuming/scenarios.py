"""Simulations that use everything a killed one must restore, small enough to be killed at every write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import Evaluation as Figures
from atoll.client import Model, Participant, Task, Update
from atoll.server.jobs.straggler_section import LearnedWindow
from atoll.server.privacy import ledger
from atoll.server.runs.journal import SqlJournal
from atoll.server.runs.stepping import Entry
from atoll.server.stores import charges
from atoll.simulation import (
    Aggregation,
    Behaviour,
    Cohort,
    Evaluation,
    FedAdam,
    FedAvgM,
    Federation,
    Job,
    Privacy,
    Result,
    Straggler,
)
from atoll.simulation.result import read

MODEL: dict[str, npt.NDArray[Any]] = {"w": np.linspace(-1, 1, 6, dtype=np.float32)}
SECRET = "07" * 32
KILLED = 9
"""Exit code of a process that ends as if it were killed."""


class Remembering(Participant):
    """Steps by a number that depends on how often it has trained, which only its folder records."""

    folder: Path

    def __init__(self, number: int) -> None:
        self.number = number
        self.examples = 1 + number

    def prepare(self, state: Path) -> None:
        self.folder = state

    def fit(self, model: Model, task: Task) -> Update:
        worked = len(list(self.folder.iterdir()))
        (self.folder / str(worked)).write_text(f"{task.round}.{task.attempt}")
        noise = np.random.default_rng((self.number, worked, task.seed)).standard_normal(6)
        return Update(delta={"w": (0.1 * noise - 0.1 * model["w"]).astype(np.float32)}, weight=self.examples)

    def evaluate(self, model: Model, task: Task) -> Figures:
        del task
        return Figures({"first": float(model["w"][0])}, self.examples)


def judged(model: Any) -> dict[str, float]:
    return {"mean": float(model["w"].mean())}


def _spells(number: int) -> list[tuple[float, float]]:
    return [(start, start + 70.0 + 9.1 * number) for start in np.arange(20) * 170.0 + 30.0 * (number % 4)]


RESTLESS = Behaviour(
    speed=lambda number, at: 10.0 + 7.3 * ((3 * number + at) % 8),
    availability=_spells,
    dropout=0.2,
    back_s=77.7,
    seed=3,
)
"""Participants that come and go, drop out, and take different times."""


def busy(rounds: int = 4) -> Job:
    """Over-selection, a learned window, draws by history, an optimiser with state, evaluations."""
    return Job(
        rounds=rounds,
        seed=11,
        cohort=Cohort(size=3, seed=5, over_selection=2.0, quorum=1, min_available=4, sampler="availability"),
        straggler=Straggler(learned=LearnedWindow(quantile=0.5, factor=1.2, min_s=20, initial_s=50, max_s=90)),
        optimiser=FedAdam(lr=0.1),
        evaluation=Evaluation(every=2),
    )


def private(mechanism: str, rounds: int = 3) -> Job:
    """A private run: secret draws, or public draws with noise that is kept between rounds."""
    bounded: dict[str, Any] = {"mechanism": mechanism, "max_participations": rounds, "min_separation": 1}
    secret = mechanism == "poisson"
    drawn: dict[str, Any] = (
        {"sampler": "poisson", "rate": 0.5, "quorum": 0} if secret else {"sampler": "least_recent", "seed": 5}
    )
    return Job(
        rounds=rounds,
        seed=11,
        cohort=Cohort(size=4, **drawn),
        straggler=Straggler(report_window_s=100.0),
        aggregation=Aggregation(weighting="uniform"),
        optimiser=FedAvgM(momentum=0.5),
        privacy=Privacy(population="people", delta=1e-5, noise_multiplier=2.0, clip=1.0, **({} if secret else bounded)),
    )


def asynchronous(rounds: int = 5) -> Job:
    """Late reports count in later rounds, so that most tasks are in work over several rounds."""
    return Job(
        rounds=rounds,
        seed=11,
        cohort=Cohort(size=2, seed=5, over_selection=2.0),
        straggler=Straggler(late="carry", max_staleness=3, report_window_s=60.0),
        optimiser=FedAdam(lr=0.1),
    )


def played(job: Job, behaviour: Behaviour = RESTLESS, **options: Any) -> Result:
    """Play a job over eight participants that keep files."""
    federation = Federation(participants=Remembering, population=8, behaviour=behaviour)
    return federation.run(job, initial=MODEL, evaluate=None if job.privacy else judged, **options)


def facts(result: Result) -> dict[str, Any]:
    """All that two simulations have in common if their bits are the same."""
    members = [
        [(one.participant, one.status, one.detail, one.report_s) for one in attempt.members]
        for attempt in result.detail().rounds
    ]
    paid = read(result._folder, lambda connection: charges.listed(connection, result.run.run))
    return {
        "digest": result.digest,
        "weights": result.model["w"].tobytes(),
        "virtual_s": result.virtual_s,
        "rounds": list(result.history.rows()),
        "members": members,
        "charges": [(one.round, one.attempt, one.mechanism, one.body, one.charged_at) for one in paid],
        "flaws": read(result._folder, ledger.flaws),
    }


@contextlib.contextmanager
def dying(append: int, *, stored: bool) -> Iterator[None]:
    """Within the context, the process ends as if killed at this append to the run's journal, counted from 1.

    Args:
        append: it ends with this append.
        stored: whether it ends after the append; otherwise before it.
    """
    appends, append_to = 0, SqlJournal.append

    async def last(journal: SqlJournal, entry: Entry) -> None:
        nonlocal appends
        appends += 1
        if appends == append and not stored:
            os._exit(KILLED)
        await append_to(journal, entry)
        if appends == append:
            os._exit(KILLED)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SqlJournal, "append", last)
        yield


def killed_at(append: int, play: Callable[[], object], *, stored: bool) -> int:
    """The exit code of a forked process that plays and is ``dying`` at an append."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with dying(append, stored=stored):
        try:
            play()
            os._exit(0)
        finally:
            os._exit(1)
