"""A run as parameters, metrics by step, and tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from atoll.operator import History
from atoll.operator.exports.exportable import Exportable
from atoll.operator.exports.tracked import MAX_EXACT, Point, tracked
from atoll.operator.models import Which
from tests.operator.exports.samples import DETAIL, HOSTILE, JOB, ROUNDS, SPENDING, hostile


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


PRIVATE = '[aggregation]\nmax_weight = 100\n[privacy]\npopulation = "p"\nepsilon = 8.0\ndelta = 1e-5\nclip = 1.0\n'
SECRET = JOB.replace("size = 3", 'size = 3\nsampler = "poisson"\nrate = 0.1')
CAPPED = "max_participations = 1\n"


@pytest.mark.parametrize(
    ("job", "figures", "says_why"),
    [
        (JOB, {"cohort", "reported", "duration_s", "total_weight"}, True),
        (JOB + PRIVATE + CAPPED, {"cohort", "reported", "duration_s"}, True),
        (SECRET + PRIVATE, set[str](), False),
        ("a newer version's", set[str](), False),
    ],
    ids=["plain", "private", "secret", "unreadable"],
)
def test_what_a_private_runs_bound_does_not_cover_stays_out(job: str, figures: set[str], *, says_why: bool) -> None:
    found = tracked(replace(DETAIL, job_toml=job))
    assert {one.name.removeprefix("round/") for one in found.points if one.name.startswith("round/")} == figures
    assert ("atoll.reason" in found.tags) == says_why
    assert any(one.name == "server/accuracy" for one in found.points)


class Ended(Exportable):
    """A run that has ended."""

    def __init__(self, job: str) -> None:
        self.detail = replace(DETAIL, job_toml=job)

    def export(self, folder: Path | str, which: Which = "latest", **options: object) -> Path:
        del which, options
        Path(folder).mkdir()
        return Path(folder)

    def report(self, path: Path | str) -> Path:
        Path(path).write_text("<html></html>", encoding="utf-8")
        return Path(path)

    def _histories_to_export(self, lost: Callable[[str], object], *, follow: bool) -> Iterable[History]:
        del lost, follow
        yield History(self.detail)

    def _ledger_to_export(self) -> None:
        return None

    def _model_to_export(self, which: Which, data: object, steps: object) -> NoReturn:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("job", "artifacts"),
    [(JOB + PRIVATE + CAPPED, ["model", "report.html"]), (SECRET + PRIVATE, ["model"])],
    ids=["told", "secret"],
)
def test_the_report_of_a_secret_draw_is_no_artifact(job: str, artifacts: list[str], tmp_path: Path) -> None:
    Ended(job)._write_artifacts(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == artifacts
