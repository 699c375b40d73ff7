"""Runs side by side: variants named after their jobs, rows, the table and the plots."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from atoll.operator import BadInputError, Comparison, RunDetail
from atoll.operator.variants import MAX_LABEL, compared_run, label_of, named_by_jobs
from atoll.server.control import MemberSummary
from tests.operator.test_history import RUN, a_round

JOB = """
[job]
name = "{name}"
rounds = 2
seed = {seed}

[model]
initial = "initial.safetensors"

[cohort]
size = {size}

[optimiser]
name = "fedadam"
{lr}
"""
MEMBERS = (
    MemberSummary("a", "lab", "reported", "", 1, 1.0, payload_bytes=300),
    MemberSummary("b", "lab", "late", "", 1, 1.0, payload_bytes=700),
)


def job(*, seed: int = 1, size: int = 4, lr: str = "lr = 0.1", name: str = "digits") -> str:
    return JOB.format(seed=seed, size=size, lr=lr, name=name)


def detail(text: str, accuracy: float, run: str = "r1") -> RunDetail:
    rounds = (replace(a_round(0, metrics={"server/accuracy": accuracy, "train/loss": 1.0}), members=MEMBERS),)
    return RunDetail(replace(RUN, run=run, name="digits", status="finished"), rounds, 4, text, 5)


def comparison(*jobs: str, separate: bool = False) -> Comparison:
    runs = [
        compared_run(detail(text, 0.5 + place / 10, f"r{place}"), None, seconds=90.0) for place, text in enumerate(jobs)
    ]
    return Comparison(named_by_jobs(runs, jobs, separate=separate))


def variants(found: Comparison) -> list[str]:
    return [run.variant for run in found.runs]


def test_jobs_that_differ_in_seeds_and_names_alone_are_repeats() -> None:
    found = comparison(job(seed=1), job(seed=2, name="again"), job(lr="lr = 0.01"))
    assert variants(found) == ["optimiser.lr = 0.1", "optimiser.lr = 0.1", "optimiser.lr = 0.01"]
    assert [one.runs for one in found.variants] == [2, 1]
    assert variants(comparison(job(seed=1), job(seed=2))) == ["digits", "digits"]


def test_runs_are_kept_apart_on_request() -> None:
    assert variants(comparison(job(), job(), separate=True)) == ["digits r0", "digits r1"]


def test_a_default_that_is_written_out_is_no_difference() -> None:
    written = 'sampler = "uniform"\n'
    found = comparison(job(), job().replace("size = 4\n", f"size = 4\n{written}"))
    assert len(set(variants(found))) == 1


def test_what_follows_from_a_key_is_not_named_beside_it() -> None:
    assert variants(comparison(job(size=4), job(size=8))) == ["cohort.size = 4", "cohort.size = 8"]


def test_jobs_that_differ_in_much_have_their_names_and_stay_apart() -> None:
    settings = "".join(f"a_long_name_of_a_setting_{place} = 1\n" for place in range(4))
    assert len(label_of({f"training.a_long_name_of_a_setting_{place}": 1 for place in range(4)})) > MAX_LABEL
    found = comparison(job(), job() + f"[training]\n{settings}", job(seed=3))
    assert variants(found) == ["digits (1)", "digits (2)", "digits (1)"]


def test_a_job_of_another_version_is_compared_by_the_keys_that_it_gives() -> None:
    found = comparison(job() + "[unheard-of]\nkey = 1\n", job() + "[unheard-of]\nkey = 2\n", "no TOML")
    assert len(set(variants(found))) == 3


def test_rows_have_settings_seeds_metrics_and_the_bytes_of_all_updates() -> None:
    row = comparison(job(), job(lr="lr = 0.01")).rows()[1]
    assert row["optimiser.lr"] == 0.01
    assert (row["run"], row["job_seed"], row["sent_bytes"], row["seconds"]) == ("r1", 5, 1000, 90.0)
    assert (row["accuracy"], row["loss"]) == (0.6, 1.0)
    assert comparison(job()).runs[0].rounds[0].members == ()


def test_the_table_is_aligned_text_and_html() -> None:
    found = comparison(job(seed=1), job(seed=2), job(lr="lr = 0.01"))
    assert str(found).splitlines() == [
        "variant              runs      accuracy   loss  rounds  time  sent",
        "optimiser.lr = 0.1      2  0.55 ± 0.071  1 ± 0       1  90 s  1 kB",
        "optimiser.lr = 0.01     1           0.7      1       1  90 s  1 kB",
    ]
    assert len(ET.fromstring(found._repr_html_())) == 3  # noqa: S314  # our own table
    assert repr(found) == "<Comparison of 3 runs of 2 variants>"


def test_a_plot_has_a_curve_for_each_variant_and_a_band_for_repeats() -> None:
    found = comparison(job(seed=1), job(seed=2), job(lr="lr = 0.01"))
    (axes,) = found.plot("accuracy").axes
    assert [line.get_label() for line in axes.lines] == ["optimiser.lr = 0.1", "optimiser.lr = 0.01"]
    assert len(axes.collections) == 1
    assert len(found.plot().axes) == 2


def test_a_variant_whose_name_is_no_formula_is_drawn() -> None:
    found = comparison(job(), job(size=5))
    named = Comparison(tuple(replace(run, variant=rf"$\bad{{$ {run.variant}") for run in found.runs))
    assert named.plot("accuracy")._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]  # drawn when shown


def test_a_plot_of_what_was_not_measured_names_what_was() -> None:
    with pytest.raises(BadInputError, match=r"do not have metric 'f1'\n.*choose of accuracy, loss"):
        comparison(job()).plot("f1")


@pytest.mark.parametrize("ask", [lambda one: one.plot(), lambda one: one.page()])
def test_without_the_library_the_extra_is_named(ask: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "atoll.server.report.comparison", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    with pytest.raises(ImportError, match=r"needs matplotlib\S*: .*server"):
        ask(comparison(job()))  # type: ignore[operator]


def test_rows_become_a_frame_and_the_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pandas")
    module.__dict__["DataFrame"] = len
    monkeypatch.setitem(sys.modules, "pandas", module)
    found = comparison(job(), job())
    assert found.to_pandas() == 2
    assert found.report(tmp_path / "page.html").read_text().startswith("<!doctype html>")
