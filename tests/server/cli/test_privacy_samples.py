"""``atoll privacy plan --rows``: DP-SGD of participants; and the plan of a private job that leads to it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from atoll.server.cli.privacy import privacy
from tests.server.privacy.jobs import job_text

ROWS = ("--rows", "106", "--batch", "32", "--rounds", "20", "--delta", "1e-4", "--epsilon", "3")
FOUR = 'size = 1\nsampler = "uniform"\nmin_available = 4'
KEYS = 'noise_multiplier = 4.0\ndelta = 1e-5\nclip = 0.5\nmax_participations = 30\nmechanism = "gaussian"'


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(privacy, ["plan", *arguments])


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(job_text(FOUR, KEYS, rounds=30), encoding="utf-8")
    return str(path)


def test_the_table_has_noise_steps_ratios_the_setting_and_what_ratios_meant() -> None:
    found = plan(*ROWS, "--participants", "4", "--elements", "62")
    assert found.exit_code == 0, found.output
    for words in (
        "80: 20 rounds of 4 steps",
        "is in a step with probability 0.3019, batch 32",
        "the mean of 4 participants",
        "DpSgd(noise_multiplier=3.607, max_grad_norm=1.0, limit=Limit(epsilon=2.9996, delta=0.0001)",
        "on breast cancer (4 participants of 106 rows, 62 elements, epsilon 3)",
        "without noise",
    ):
        assert words in found.output


def test_json_has_the_plan_and_the_cases() -> None:
    found = json.loads(plan(*ROWS, "--participants", "4", "--elements", "62", "--json").stdout)
    assert found["unit"] == "sample"
    assert found["plan"]["training"]["steps_per_round"] == 4
    assert found["plan"]["epsilon"] <= 3
    assert [case["data"] for case in found["measured"]]


def test_without_a_size_there_are_no_ratios_and_it_says_so() -> None:
    found = plan(*ROWS)
    assert "Give --elements N" in found.output
    assert json.loads(plan(*ROWS, "--json").stdout)["plan"]["of_run"] is None


def test_a_job_gives_the_defaults(job: str) -> None:
    said = json.loads(
        plan(
            job, "--rows", "200", "--batch", "20", "--steps", "3", "--epsilon", "2", "--elements", "9", "--json"
        ).stdout
    )["plan"]
    assert (said["training"]["rounds"], said["training"]["steps_per_round"], said["delta"]) == (30, 3, 1e-5)


def test_the_plan_of_a_job_with_few_participants_leads_to_turns_and_to_rows(job: str) -> None:
    found = plan(job, "--elements", "62")
    assert found.exit_code == 0, found.output
    assert 'cohort.sampler = "least_recent", privacy.max_participations = 8, min_separation = 4' in found.output
    assert f"atoll privacy plan {job} --rows N --batch B" in found.output
    said = json.loads(plan(job, "--elements", "62", "--json").stdout)
    assert said["in_turns"]["max_participations"] == 8
    assert said["sample_level"] is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give JOB.toml, or --rows N --batch B"),
        (("--batch", "3"), "--batch is about DP-SGD of participants"),
        (ROWS[:2], "--delta is missing"),
        ((*ROWS[:2], "--delta", "1e-4"), "--epsilon is missing"),
        ((*ROWS[:2], *ROWS[4:]), "--batch is missing"),
        ((*ROWS[:4], *ROWS[6:]), "--rounds is missing"),
        ((*ROWS, "--steps", "3", "--epochs", "2"), "--epochs and --steps exclude each other"),
        ((*ROWS, "--noise-multiplier", "3"), "--epsilon and --noise-multiplier exclude each other"),
        ((*ROWS, "--plot", "a.svg"), "--plot is about a private JOB"),
        ((*ROWS, "--signal-to-noise", "2"), "--signal-to-noise is about a private JOB"),
        ((*ROWS, "--batch", "320"), "batch = 320 is more than the 106 rows; must be at most 106"),
        ((*ROWS[:6], "--delta", "0.1", "--epsilon", "3"), "must be below 0.00943"),
    ],
)
def test_refusals_say_what_to_do(options: tuple[str, ...], words: str) -> None:
    found = plan(*options)
    assert found.exit_code == 2
    assert words in found.output
