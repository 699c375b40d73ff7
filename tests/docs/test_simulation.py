"""docs/simulation.md does what it says: its snippets run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.simulation import Cohort, Federation, Job
from tests.simulation.test_federation import MODEL, Stepping

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulation.md"
SECONDS = re.compile(r" +(?:[\d.]+ m?s|\d+m \d+s)(?= +[\d.]+ k?B$)", re.MULTILINE)
"""The column of real time, which no two runs share."""


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_readmes_simulation_prints_what_it_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    (snippet,) = (one for one in snippets(ROOT / "README.md") if "atoll.simulation" in one)
    exec(compile(snippet, "README.md", "exec"), {})  # noqa: S102 - the page's own code
    assert f"```\n{capsys.readouterr().out}```" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in snippets(PAGE):
        code = compile(snippet, str(PAGE), "exec")
        exec(code, names)  # noqa: S102 - the page's own code
    assert (tmp_path / "report.html").exists()
    distances = names["result"].history.metric("server/distance")
    assert distances[-1] < distances[0]
    printed = capsys.readouterr().out
    assert names["result"].digest in printed
    assert SECONDS.sub("", printed[printed.index("optimiser = ") :]) in SECONDS.sub(
        "", PAGE.read_text(encoding="utf-8")
    )
    assert (tmp_path / "comparison.html").exists()
    assert names["federation"].run(names["job"], initial={"centre": np.zeros(4, np.float32)}).status == "finished"


async def test_a_run_goes_to_a_thread_inside_an_event_loop() -> None:
    federation, job = Federation(participants=Stepping, population=4), Job(rounds=1, cohort=Cohort(size=4))
    result = await asyncio.to_thread(federation.run, job, initial=MODEL, workers=2)
    assert result.status == "finished"
