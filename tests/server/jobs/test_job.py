"""Jobs written in Python are the jobs of files."""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from atoll.server.jobs import (
    AdaptiveClip,
    Aggregation,
    Cohort,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Job,
    JobFileError,
    LearnedWindow,
    Optimiser,
    Privacy,
    Straggler,
    parse_job,
)
from atoll.server.jobs.reference import MINIMAL, PRIVATE, TYPICAL


def test_a_job_in_python_is_the_job_of_its_file() -> None:
    job = Job(rounds=50, cohort=Cohort(size=20), optimiser=FedAdam(lr=0.05), training={"epochs": 2}, seed=7)
    assert tomllib.loads(job.to_toml()) == {
        "job": {"name": "job", "rounds": 50, "seed": 7},
        "cohort": {"size": 20},
        "optimiser": {"name": "fedadam", "lr": 0.05, "beta1": 0.9, "beta2": 0.99, "tau": 0.001},
        "training": {"epochs": 2},
    }
    assert dict(parse_job(job.to_toml())) == dict(job)


@pytest.mark.parametrize("text", [MINIMAL, TYPICAL, PRIVATE])
def test_a_file_is_loaded_and_written_back(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    job = Job.load(path)
    (tmp_path / "again.toml").write_text(job.to_toml(), encoding="utf-8")
    assert dict(parse_job(job.to_toml())) == dict(job)
    assert Job.load(tmp_path / "again.toml") == job
    assert job.model is not None
    assert Path(job.model.initial).parent == tmp_path


@pytest.mark.parametrize("text", [MINIMAL, TYPICAL, PRIVATE])
def test_a_job_goes_through_pickle_and_pydantic_unchanged(text: str) -> None:
    job = Job.of(parse_job(text))
    copies = (
        pickle.loads(pickle.dumps(job)),  # noqa: S301  # the test's own bytes
        Job.model_validate(job.model_dump()),
        Job.model_validate_json(job.model_dump_json()),
    )
    for copy in copies:
        assert copy == job
        assert (copy.to_toml(), hash(copy)) == (job.to_toml(), hash(job))


def test_training_settings_cannot_be_changed_after_they_were_checked() -> None:
    job = Job(rounds=1, cohort=Cohort(size=2), training={"epochs": 2})
    assert job.training == {"epochs": 2}
    with pytest.raises(TypeError, match="does not support item assignment"):
        job.training["epochs"] = "many"  # type: ignore[index]  # the point of the test


def test_sections_inside_sections_are_written_as_tables() -> None:
    job = Job(rounds=1, cohort=Cohort(size=2), straggler=Straggler(learned=LearnedWindow(factor=2.0)))
    assert tomllib.loads(job.to_toml())["straggler"] == {"learned": {"factor": 2.0}}
    assert parse_job(job.to_toml()).straggler == job.straggler


def test_defaults_that_follow_from_privacy_are_those_of_a_file() -> None:
    job = Job(
        rounds=4,
        cohort=Cohort(size=20, sampler="poisson", rate=0.1),
        aggregation=Aggregation(weighting="uniform"),
        privacy=Privacy(population="ward", epsilon=8.0, delta=1e-6, adaptive=AdaptiveClip(initial=1.0)),
    )
    assert (job.evaluation.final, job.cohort.quorum) == (False, 0)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (FedAvg(), "fedavg"),
        (FedAvgM(nesterov=True), "fedavgm"),
        (FedAdagrad(), "fedadagrad"),
        (FedAdam(), "fedadam"),
        (FedYogi(), "fedyogi"),
    ],
)
def test_optimisers_have_the_defaults_of_the_file(made: Optimiser, name: str) -> None:
    job = Job(rounds=1, cohort=Cohort(size=2), optimiser=made)
    assert job.optimiser.settings | {"nesterov": 0} == parse_job(
        f'{MINIMAL}[optimiser]\nname = "{name}"\n'
    ).optimiser.settings | {"nesterov": 0}


def test_every_problem_is_named_with_its_key() -> None:
    with pytest.raises(JobFileError) as caught:
        Job(rounds=0, cohort=20, training={"lr": float("nan")})  # type: ignore[arg-type]  # the point of the test
    assert {problem.key for problem in caught.value.problems} == {"job.rounds", "cohort", "training.lr"}
    assert "cohort = 20: allowed is a table" in str(caught.value)


def test_conflicts_between_sections_are_found() -> None:
    with pytest.raises(JobFileError, match=r"aggregation\.max_weight = 4294967296: with up to 100000 updates"):
        Job(rounds=1, cohort=Cohort(size=100_000), aggregation=Aggregation(max_weight=2**32))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"none\.toml: cannot be read: No such file"):
        Job.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedAdam(lr=cast("Any", "0.1")), 'Optimiser: lr = "0.1": allowed is a number above 0 up to 1000'),
        (lambda: Cohort(size=cast("Any", "3")), 'Cohort: size = "3": allowed is a whole number from 1 to 100000'),
        (
            lambda: Cohort(**cast("dict[str, Any]", {"size": 3, "sise": 4})),
            'Cohort: sise = 4: no such key; did you mean "size"?',
        ),
        (lambda: Cohort(size=3, quorum=4), "Cohort: quorum = 4"),
    ],
)
def test_a_section_that_is_not_allowed_is_told_as_in_a_file(make: Callable[[], object], said: str) -> None:
    with pytest.raises(JobFileError) as raised:
        make()
    assert said in str(raised.value)
