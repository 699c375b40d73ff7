"""``atoll privacy plan``: the table, the JSON, the picture, and every refusal with its remedy."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from atoll.formats import safetensors
from atoll.server.cli.privacy import privacy
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.server.privacy.jobs import NOISE, job_text

CAPPED = f"{NOISE}\nclip = 0.5\naccountant = 'rdp'\nmax_participations = 4"
LAYOUT = Layout((TensorSpec("w", (30, 10), Dtype.FLOAT32), TensorSpec("b", (100,), Dtype.FLOAT32)))


def plan(folder: Path, text: str, *options: str) -> Result:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(privacy, ["plan", str(path), *options])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the initial weights of the jobs."""
    blob = np.zeros(LAYOUT.size, "<f4").tobytes()
    safetensors.write(tmp_path / "init.safetensors", LAYOUT, [blob], {})
    return tmp_path


def test_the_table_says_what_is_promised_and_what_it_costs(folder: Path) -> None:
    found = plan(folder, job_text("availability", CAPPED))
    assert found.exit_code == 0, found.output
    for words in (
        "add_remove: one participant's updates are there, or zeros in their place",
        "not counted on: at most 4 of 1000 rounds for each",
        "wards, of 25000 or more",
        "all 400 elements, L2",
        "all planned rounds are within epsilon",
    ):
        assert words in found.output


def test_json_has_the_plan_and_the_contract(folder: Path) -> None:
    found = plan(folder, job_text("availability", CAPPED), "--json", "--epsilon", "20", "--signal-to-noise", "0.5")
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert (said["elements"], said["cohort"], said["target"], said["wanted"]) == (400, 100, 20.0, 0.5)
    assert said["contract"]["sampling"] == "none"
    assert said["contract"]["max_participations"] == 4
    assert said["spent"][-1]["rounds"] == 1000
    assert said["cohort_wanted"]["signal_to_noise"] >= 0.5


def test_a_model_with_batch_norms_statistics_is_refused(folder: Path) -> None:
    layout = Layout((TensorSpec("norm.running_mean", (4,), Dtype.FLOAT32),))
    safetensors.write(folder / "init.safetensors", layout, [bytes(16)], {})
    found = plan(folder, job_text("availability", CAPPED))
    assert found.exit_code == 2
    assert "tensors norm.running_mean are statistics" in found.output
    assert "leave these tensors out of the initial model" in found.output


def test_fragments_are_planned_for_what_one_round_updates(folder: Path) -> None:
    text = job_text("availability", CAPPED, '[aggregation]\nweighting = "uniform"\nfragments = 2')
    assert json.loads(plan(folder, text, "--json").stdout)["elements"] == 300


def test_frozen_tensors_are_left_out_of_the_plan(folder: Path) -> None:
    text = job_text("availability", CAPPED, '[aggregation]\nweighting = "uniform"\nfrozen = ["w"]')
    assert json.loads(plan(folder, text, "--json").stdout)["elements"] == 100
    refused = plan(folder, text.replace('["w"]', '["*"]'))
    assert refused.exit_code == 2
    assert "matches every tensor of the model" in refused.output


@pytest.mark.parametrize("name", ["plan.svg", "plan.html"])
def test_the_picture_is_written(folder: Path, name: str) -> None:
    found = plan(folder, job_text("availability", CAPPED), "--plot", str(folder / name))
    assert found.exit_code == 0, found.output
    assert "<svg" in (folder / name).read_text(encoding="utf-8")


STATISTICS = """
[job]
name = "overview"
[cohort]
size = 4
[statistics]
numeric = ["age"]
bounds = { age = [0, 120] }
max_rows = 150
[privacy]
population = "wards"
noise_multiplier = 4.0
delta = 1e-6
"""


def test_a_plan_of_statistics_says_what_noise_leaves_of_the_figures(tmp_path: Path) -> None:
    found = plan(tmp_path, STATISTICS)
    assert found.exit_code == 0, found.output
    assert "1200 rows, of at most 600" in found.output
    assert "for 5% of the rows it takes 160 participants; or protect rows" in found.output
    rows = json.loads(plan(tmp_path, f'{STATISTICS}unit = "row"\n', "--json").stdout)
    assert (rows["unit"], rows["unit_norm"], rows["noise_on_count"]) == ("row", 2.0, 8.0)
    assert "hide the figures" not in plan(tmp_path, f'{STATISTICS}unit = "row"\n').output


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (job_text("availability", f"{NOISE}\nclip = 0.5"), (), "give the most that one participant may have"),
        (job_text(rest=""), (), "aggregation.max_weight: is missing"),
        (job_text("availability", CAPPED), ("--plot", "plan.png"), "name the file so"),
        (job_text("availability", CAPPED).replace("init.", "other."), (), "give --elements N"),
        (
            job_text("availability", CAPPED.replace("noise_multiplier = 1.0", "epsilon = 0.0001")),
            (),
            "choose a larger epsilon or delta",
        ),
        (STATISTICS.split("max_rows", maxsplit=1)[0].split("bounds", maxsplit=1)[0], (), "its figures have no noise"),
        (job_text().split("[privacy]")[0], (), "add one: docs/job-reference.md"),
    ],
)
def test_refusals_say_why_and_what_to_do(folder: Path, text: str, options: tuple[str, ...], words: str) -> None:
    found = plan(folder, text, *options)
    assert found.exit_code == 2
    assert words in found.output


def test_a_missing_model_can_be_named_by_its_size(tmp_path: Path) -> None:
    found = plan(tmp_path, job_text("availability", CAPPED), "--json", "--elements", "1000000")
    assert json.loads(found.stdout)["elements"] == 1_000_000
