"""A run as parameters, metrics by step, and tags."""

from __future__ import annotations

from dataclasses import replace

from atoll.operator.exports.tracked import MAX_EXACT, Point, tracked
from tests.operator.exports.samples import DETAIL, HOSTILE, ROUNDS, SPENDING, hostile


def test_each_value_is_at_the_model_that_was_measured() -> None:
    found = {(one.name, one.step): one.value for one in tracked(DETAIL).points}
    assert {key: value for key, value in found.items() if not key[0].startswith("round/")} == {
        ("train/loss", 1): 2.0,
        ("train/loss", 2): 1.0,
        ("eval/accuracy", 0): 0.1,
        ("eval/accuracy", 1): 0.2,
        ("eval/accuracy", 2): 0.75,
        ("eval/examples", 2): 30.0,
        ("server/accuracy", 1): 0.25,
    }
    assert found["round/reported", 1] == 3.0
    assert ("round/reported", 3) not in found, "an evaluation trains nothing"


def test_points_are_only_ever_added() -> None:
    early = tracked(replace(DETAIL, rounds=ROUNDS[:2])).points
    assert tracked(DETAIL).points[: len(early)] == early


def test_the_first_value_of_a_metric_at_a_step_stays() -> None:
    again = replace(ROUNDS[3], metrics={"eval/accuracy": 0.9})
    points = tracked(replace(DETAIL, rounds=(*ROUNDS, again))).points
    assert [one.value for one in points if one.key == ("eval/accuracy", 2)] == [0.75]


def test_the_time_is_that_of_the_end_of_the_round() -> None:
    assert Point("train/loss", 1, 2.0, 105.0) in tracked(DETAIL).points


def test_parameters_are_the_job_with_its_defaults_and_the_seed_that_was_drawn() -> None:
    params = tracked(DETAIL).params
    assert (params["training.lr"], params["cohort.size"], params["optimiser.name"]) == (0.1, 3, "fedavg")
    assert params["job.seed"] == str(2**60 + 1)
    assert tracked(replace(DETAIL, seed=MAX_EXACT)).params["job.seed"] == MAX_EXACT


def test_tags_say_which_run_and_what_it_spent() -> None:
    tags = tracked(DETAIL, SPENDING).tags
    assert tags["atoll.run"] == "rabcdefghijkl"
    assert tags["atoll.model"] == "ab" * 32
    assert (tags["atoll.status"], tags["atoll.best_round"]) == ("finished", "2")
    assert (tags["atoll.epsilon"], tags["atoll.delta"]) == ("1.23456", "1e-06")
    assert "atoll.epsilon" not in tracked(DETAIL).tags


def test_a_run_that_goes_on_has_no_end() -> None:
    running = replace(DETAIL, run=replace(DETAIL.run, status="running", finished_at=None))
    assert tracked(DETAIL).ended
    assert not tracked(running).ended


def test_names_are_printable() -> None:
    found = tracked(hostile().detail)
    assert HOSTILE not in {one.name for one in found.points}
    assert all(one.name.isprintable() for one in found.points)
    assert all(name.isprintable() and str(value).isprintable() for name, value in found.params.items())
