"""docs/statistics.md does what it says: its snippets run, and its job is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.jobs import Cohort, Job, Privacy, Statistics, parse_job
from atoll.server.jobs.privacy_section import Unit
from atoll.server.privacy.statistics_plan import statistics_plan
from tests.docs.test_simulation import ROOT, snippets

PAGE = ROOT / "docs" / "statistics.md"


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in snippets(PAGE):
        exec(compile(snippet, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code
    ages = np.concatenate([names["Hospital"](number).table()["age"] for number in range(4)])
    first, second, split, third = capsys.readouterr().out.splitlines()
    assert first == "800 4 800 0"
    assert second.startswith(f"{ages.mean():.3f} {ages.std(ddof=1):.3f} ")
    assert re.fullmatch(r"\d+ benign, \d+\.\d\d ± \d+\.\d\d years", split)
    assert re.fullmatch(r"\d+ ± 8\.4 rows, mean \d+\.\d ± 0\.\d+", third)
    np.testing.assert_allclose(names["features"].std(), 1, rtol=0.2)


def test_its_jobs_are_valid() -> None:
    plain, private = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert parse_job(plain).privacy is None
    assert parse_job(private).privacy is not None


def test_its_figures_of_noise_are_those_of_the_plan() -> None:
    section = Statistics(numeric=("a",), categories={"b": ("c",)}, bounds={"a": (0, 1)}, max_rows=150)
    cases: list[tuple[Unit, float, float, tuple[int, int]]]
    cases = [("participant", 1417, 2.36, (189, 945)), ("row", 9.4, 0.016, (2, 7))]
    for unit, noise, share, needed in cases:
        terms = Privacy(population="p", epsilon=1.0, delta=1e-6, unit=unit)
        found = statistics_plan(Job(cohort=Cohort(size=4), statistics=section, privacy=terms), section)
        assert found is not None
        assert found.noise_on_count == pytest.approx(noise, rel=0.01)
        assert found.share == pytest.approx(share, rel=0.02)
        assert (found.participants_for[0.05], found.participants_for[0.01]) == needed
