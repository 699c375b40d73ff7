"""docs/statistics.md does what it says: its snippets run, and its job is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.server.jobs import parse_job
from tests.docs.test_simulation import ROOT, snippets

PAGE = ROOT / "docs" / "statistics.md"


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in snippets(PAGE):
        exec(compile(snippet, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code
    ages = np.concatenate([names["Hospital"](number).table()["age"] for number in range(4)])
    first, second = capsys.readouterr().out.splitlines()
    assert first == "800 4 800 0"
    assert second.startswith(f"{ages.mean():.3f} {ages.std(ddof=1):.3f} ")
    np.testing.assert_allclose(names["features"].std(), 1, rtol=0.2)


def test_its_job_is_valid() -> None:
    (job,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert parse_job(job).statistics is not None
