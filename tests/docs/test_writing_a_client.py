"""docs/writing-a-client.md: the snippet of the fake server runs."""

from __future__ import annotations

import pytest

from tests.docs.test_simulation import ROOT, snippets


def test_the_fake_servers_snippet_prints_what_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    page = ROOT / "docs" / "writing-a-client.md"
    (snippet,) = (one for one in snippets(page) if "FakeServer" in one)
    exec(compile(snippet, "writing-a-client.md", "exec"), {})  # noqa: S102 - the page's own code
    assert f"```\n{capsys.readouterr().out}```" in page.read_text(encoding="utf-8")
