"""docs/writing-a-client.md: the snippets of the fake server and of tensors that stay run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll.client.testing import FakeServer
from atoll.formats.arrays import load
from tests.docs.test_simulation import ROOT, snippets

pytestmark = pytest.mark.slow


def test_the_fake_servers_snippet_prints_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    page = ROOT / "docs" / "writing-a-client.md"
    (snippet,) = (one for one in snippets(page) if "FakeServer" in one)
    exec(compile(snippet, "writing-a-client.md", "exec"), {})  # noqa: S102 - the page's own code
    assert f"```\n{capsys.readouterr().out}```" in page.read_text(encoding="utf-8")


def test_sites_that_share_a_part_agree_on_it_and_not_on_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = (one for one in snippets(ROOT / "docs" / "writing-a-client.md") if "PersonalTorch" in one)
    names: dict[str, Any] = {}
    exec(compile(snippet, "writing-a-client.md", "exec"), names)  # noqa: S102 - the page's own code
    initial = load("initial.safetensors")
    assert set(initial) == {"0.weight", "0.bias"}
    played = FakeServer(initial, state=tmp_path).run(*(names["site"](number) for number in range(4)), rounds=15)
    last = [report.evaluation["accuracy"] for report in played.rounds[-1].reports]
    assert min(last) > 0.85  # one head for all would be right at half of the sites
