from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import Evaluation, Model, Participant, Task, Update
from atoll.server.aggregation import Accumulator, Grid
from atoll.server.stores import history
from atoll.simulation import (
    Aggregation,
    Cohort,
    EvaluateError,
    FedAdam,
    Federation,
    Job,
    NotFiniteWarning,
    ParticipantError,
    Privacy,
    Result,
    RunFailedError,
    SetupError,
    Straggler,
)
from atoll.simulation.result import read

MODEL: dict[str, npt.NDArray[Any]] = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "b": np.zeros(2, np.float64),
}
STEP = 2.0**-6


class Stepping(Participant):
    """Adds its number of steps of 2^-6 to every weight: exact in every type and on every grid."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.examples = 1 + number

    def fit(self, model: Model, task: Task) -> Update:
        del task
        delta = {name: np.full_like(values, self.number * STEP) for name, values in model.items()}
        return Update(delta=delta, weight=self.examples, metrics={"number": self.number})

    def evaluate(self, model: Model, task: Task) -> Evaluation:
        del task
        return Evaluation({"first": float(model["w"][0, 0])}, self.examples)


class Failing(Stepping):
    """Number 1 fails."""

    def fit(self, model: Model, task: Task) -> Update:
        if self.number == 1:
            raise ZeroDivisionError("no data today")
        return super().fit(model, task)


def played(rounds: int = 2, population: int = 4, size: int = 4, **options: Any) -> Result:
    job = Job(rounds=rounds, cohort=Cohort(size=size, seed=5))
    return Federation(participants=Stepping, population=population).run(job, initial=MODEL, **options)


def test_a_run_gives_the_weighted_mean_and_a_history() -> None:
    result = played(evaluate=lambda model: {"mean": float(model["w"].mean())})
    mean = sum((1 + number) * number for number in range(4)) / 10 * STEP
    np.testing.assert_allclose(result.model["w"], MODEL["w"] + 2 * mean, atol=1e-6)
    assert result.status == "finished"
    assert [(one.kind, one.reported) for one in result.history] == [("train", 4), ("train", 4), ("evaluate", 4)]
    assert result.history.metric("server/mean") == pytest.approx([mean, 2 * mean], abs=1e-6)
    rows = result.history.rows()
    assert rows[0]["train/number"] == pytest.approx(2.0)
    assert rows[0]["phase"] == "released"
    assert "<progress" in result._repr_html_()
    assert repr(result) == f"<Result of run {result.run.run}: finished, 2/2 rounds, model {result.digest[:16]}>"


def test_the_same_seed_gives_the_same_bits_and_members() -> None:
    one, other = (played(rounds=3, population=20, size=5) for _ in range(2))
    assert one.digest == other.digest
    members = [[member.participant for member in attempt.members] for attempt in one.detail().rounds]
    assert members == [[member.participant for member in attempt.members] for attempt in other.detail().rounds]


def test_a_private_run_has_its_ledger_and_a_plain_one_has_none() -> None:
    privacy = Privacy(population="people", noise_multiplier=2.0, delta=1e-5, clip=1.0, mechanism="gaussian")
    job = Job(
        rounds=3,
        cohort=Cohort(size=2, sampler="poisson", rate=0.5),
        aggregation=Aggregation(weighting="uniform"),
        privacy=privacy,
    )
    result = Federation(participants=Stepping, population=6, examples=1).run(job, initial=MODEL)
    ledger = result.ledger
    assert ledger is not None
    assert [(one.run, one.round, one.mechanism) for one in ledger.charges] == [
        (result.run.run, number, "gaussian") for number in range(3)
    ]
    assert (ledger.population.population, ledger.delta) == ("people", 1e-5)
    assert 0 < ledger.epsilon <= ledger.population.epsilon
    assert played().ledger is None


def test_a_result_draws_its_metrics() -> None:
    result = played(evaluate=lambda model: {"mean": float(model["w"].mean())})
    assert len(result.plot("mean").axes) == 1


def test_the_report_and_the_model_can_be_written(tmp_path: Path) -> None:
    result = played()
    assert "<html" in result.report(tmp_path / "run.html").read_text()
    again = Federation(participants=Stepping, population=4).run(
        Job(rounds=1, cohort=Cohort(size=4)), initial=result.save(tmp_path / "model.safetensors")
    )
    assert again.layout == result.layout


def test_a_participant_that_fails_does_not_count_and_another_takes_its_place(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(rounds=1, cohort=Cohort(size=3, over_selection=4 / 3))
    result = Federation(participants=Failing, population=4).run(job, initial=MODEL)
    statuses = {one.participant: one.status for one in result.detail().rounds[0].members}
    assert statuses["p1"] == "failed"
    assert list(statuses.values()).count("reported") == 3
    assert "participant p1 failed in round 1" in caplog.text
    assert "no data today" in caplog.text


class Misfit(Participant):
    """Its data has another shape than the model."""

    def __init__(self, number: int) -> None:
        self.rows = np.ones((number + 2, 7))
        self.examples = number + 2

    def fit(self, model: Model, task: Task) -> Update:
        del task
        return Update({"w": self.rows - model["w"]}, weight=self.examples)


def test_failures_at_one_place_have_one_traceback_and_name_the_models_shapes(caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation(participants=Misfit, population=3)
    with pytest.raises(RunFailedError) as caught:
        federation.run(Job(rounds=1, cohort=Cohort(size=3)), initial=MODEL)
    assert caplog.text.count("Traceback") == 1
    assert caplog.text.count("p1 failed in round 1: ValueError: operands could not be broadcast") == 1
    assert "the model has w [" in caplog.text
    assert "_session" not in caplog.text, "the traceback begins in the participant's code"
    assert "TrainerError" not in str(caught.value)


def test_a_strict_run_stops_at_the_first_failure() -> None:
    federation = Federation(participants=Failing, population=4)
    with pytest.raises(ParticipantError, match=r"p1 failed in round 1:(.|\n)*no data today") as caught:
        federation.run(Job(rounds=1, cohort=Cohort(size=4)), initial=MODEL, strict=True)
    assert (caught.value.participant, caught.value.round) == ("p1", 0)


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (lambda model: float(model["no such tensor"][0]), "KeyError: 'no such tensor'"),
        (lambda _: {"accuracy": "high"}, "ValueError: could not convert string to float: 'high'"),
        (lambda _: None, "TypeError"),
    ],
)
def test_an_evaluation_that_raises_ends_the_run_with_its_exception(judge: Callable[..., Any], said: str) -> None:
    with pytest.raises(EvaluateError, match=f"evaluate raised {said}") as raised:
        played(evaluate=judge)
    assert type(raised.value.__cause__).__name__ in said
    assert "in judged" in raised.value.traceback


def test_a_value_that_is_not_finite_is_warned_of_and_named_in_the_history() -> None:
    with pytest.warns(NotFiniteWarning, match="evaluate gave loss = nan"):
        result = played(evaluate=lambda _: {"loss": float("nan"), "accuracy": 0.5})
    assert result.history.metric("server/accuracy") == [0.5, 0.5]
    assert "gave loss = nan" in result.history[0].reason


def test_a_run_that_fails_says_why() -> None:
    job = Job(rounds=1, cohort=Cohort(size=2, quorum=2), straggler=Straggler(max_attempts=2))
    federation = Federation(participants=Failing, population=2)
    with pytest.raises(RunFailedError, match="abandoned 2 times"):
        federation.run(job, initial=MODEL)


class WronglyShaped(Stepping):
    """Gives an update that the model has no place for."""

    def fit(self, model: Model, task: Task) -> Update:
        del model, task
        return Update(delta={"v": np.zeros(1, np.float32)}, weight=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_fails_says_what_the_first_participant_raised(workers: int) -> None:
    job = Job(rounds=1, cohort=Cohort(size=2, seed=5), straggler=Straggler(max_attempts=1))
    federation = Federation(participants=WronglyShaped, population=2)
    expected = (
        r"first failure: participant p[01] in round 1: .*UpdateError: the update lacks the tensors 'w', 'b' "
        r"and has the unknown tensor 'v'"
    )
    with pytest.raises(RunFailedError, match=expected):
        federation.run(job, initial=MODEL, workers=workers)


def test_no_folder_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.simulation.temporary.MEMORY", tmp_path)
    monkeypatch.setattr("atoll.simulation.temporary.LEAST_MEMORY_BYTES", 0)
    with pytest.raises(RunFailedError):
        Federation(participants=Failing, population=2).run(
            Job(rounds=1, cohort=Cohort(size=2, quorum=2), straggler=Straggler(max_attempts=1)), initial=MODEL
        )
    (base,) = tmp_path.iterdir()
    assert list(base.iterdir()) == []
    result = played()
    (folder,) = base.iterdir()
    assert all(path.is_file() for path in folder.iterdir())
    del result
    gc.collect()
    assert list(base.iterdir()) == []


def test_declared_examples_spare_the_participants_until_they_are_drawn() -> None:
    made: list[int] = []

    def make(number: int) -> Participant:
        made.append(number)
        participant = Stepping(number)
        participant.examples = 3
        return participant

    Federation(participants=make, population=50, examples=3).run(
        Job(rounds=1, cohort=Cohort(size=2), optimiser=FedAdam()), initial=MODEL
    )
    assert len(made) <= 5


def test_names_make_the_participants_of_a_named_population() -> None:
    job = Job(rounds=1, cohort=Cohort(size=2))
    federation = Federation(participants=lambda name: Stepping(len(name)), population=["a", "bbb"])
    result = federation.run(job, initial=MODEL)
    assert [one.participant for one in result.detail().rounds[0].members] == ["a", "bbb"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participants": 3}, "participants = 3: give a function"),
        ({"population": 0}, "population = 0: give at least 1"),
        ({"population": 2.5}, "population = 2.5: give a whole number, or a list of names"),
        ({"population": ["a", "a"]}, "2 names, 1 different"),
        ({"examples": [1, 2]}, "examples: 2 numbers for a population of 4"),
        ({"examples": 0}, "examples = 0: give 1 or more"),
        ({"examples": [1, 2, -3, 4]}, "examples = -3"),
        ({"keep": 0}, "keep = 0"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"participants": Stepping, "population": 4, **options}
    with pytest.raises(SetupError, match=message):
        Federation(**given)


def test_a_population_smaller_than_a_round_is_refused() -> None:
    with pytest.raises(SetupError, match=r"population = 4 is smaller than a round, which needs 6 .*raise population"):
        played(size=6)


def test_models_of_types_that_do_not_travel_are_refused() -> None:
    federation = Federation(participants=Stepping, population=1)
    with pytest.raises(SetupError, match=r"initial: array 'n' has element type int64; allowed are float32"):
        federation.run(Job(rounds=1, cohort=Cohort(size=1)), initial={"n": np.zeros(2, np.int64)})


def test_a_factory_that_makes_no_participants_is_told_so() -> None:
    federation = Federation(participants=str, population=2)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=r"participants\(0\) gave a str; return an atoll.client.Participant"):
        federation.run(Job(rounds=1, cohort=Cohort(size=1)), initial=MODEL)


def test_a_factory_that_raises_is_named_with_its_line() -> None:
    def make(number: int) -> Participant:
        raise FileNotFoundError(f"no rows for {number}")

    federation = Federation(participants=make, population=2)
    expected = r"participants\(0\) raised FileNotFoundError: no rows for 0 \(test_federation.py:\d+\)"
    with pytest.raises(SetupError, match=expected):
        federation.run(Job(rounds=1, cohort=Cohort(size=1)), initial=MODEL)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"job": "job.toml"}, r"job = 'job.toml': give a Job; Job.load"), ({"workers": 1.5}, "workers = 1.5")],
)
def test_a_run_of_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"job": Job(rounds=1, cohort=Cohort(size=1)), "initial": MODEL, **options}
    with pytest.raises(SetupError, match=message):
        Federation(participants=Stepping, population=2).run(**given)


def test_updates_that_are_made_chunk_by_chunk_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = played(rounds=2).digest
    monkeypatch.setattr("atoll.client.in_process.HELD_BYTES", 0)
    assert played(rounds=2).digest == whole


def test_one_sum_is_held_for_any_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Accumulator] = []

    class Counted(Accumulator):
        def __init__(self, size: int, grid: Grid, first: int = 0) -> None:
            made.append(self)
            super().__init__(size, grid, first)

    monkeypatch.setattr("atoll.simulation.update_sums.Accumulator", Counted)
    assert played(rounds=4).status == "finished"
    assert len(made) == 1


@pytest.mark.parametrize(("sampler", "learns"), [("uniform", False), ("least_recent", True)])
def test_histories_are_kept_for_samplers_that_look_back(
    sampler: Literal["uniform", "least_recent"], *, learns: bool
) -> None:
    job = Job(rounds=2, cohort=Cohort(size=3, sampler=sampler))
    result = Federation(participants=Stepping, population=6).run(job, initial=MODEL)
    names = [f"p{number}" for number in range(6)]
    assert bool(read(result._folder, lambda connection: history.of(connection, names))) is learns
