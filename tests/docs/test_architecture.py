"""The architecture page and CONTRIBUTING name modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = ("The path of one update", "The path of one private round")


def walk(heading: str) -> list[str]:
    """The modules of the numbered list under a heading, in order."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)


@pytest.mark.parametrize("heading", WALKS)
def test_a_walk_names_modules_that_exist_once_each(heading: str) -> None:
    modules = walk(heading)
    assert modules
    assert [name for name in modules if not (ROOT / name).is_file()] == []
    assert len(set(modules)) == len(modules)


def test_contributing_names_modules_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+/\w+\.(?:py|proto))`", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
