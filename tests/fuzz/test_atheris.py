"""The coverage-guided fuzzer without its engine: its message, and its limits on a process."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.fuzz import atheris as guided
from tests.fuzz.formats import Format


def test_without_the_engine_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SystemExit, match="pip install atheris"):
        guided.main(["layout"])


def test_memory_time_and_place_of_findings_are_bounded(tmp_path: Path) -> None:
    options = argparse.Namespace(seconds=7, seed=3, findings=tmp_path)
    found = dict(word.split("=") for word in guided.libfuzzer_options(options, tmp_path)[1:-1])
    assert found["-max_total_time"] == "7"
    assert found["-artifact_prefix"] == f"{tmp_path}/"
    assert int(found["-rss_limit_mb"]) > guided.GROWTH_MB


def test_an_error_that_is_not_the_formats_own_is_a_finding() -> None:
    def read(data: bytes) -> int:
        return len(data) // data[0] if data[0] < 128 else int(data)

    kind = Format(b"\x01", read, (ValueError,))
    kind.try_(b"\xff")
    with pytest.raises(ZeroDivisionError):
        kind.try_(b"\x00")
