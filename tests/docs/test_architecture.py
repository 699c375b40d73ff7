"""The architecture page names modules that exist, and the walk of one update stays short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_MODULES = 30


def walk() -> list[str]:
    """The modules of the numbered list, in order."""
    section = PAGE.partition("\n## The walk of one update\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)


def test_the_walk_of_an_update_names_modules_that_exist_once_each() -> None:
    modules = walk()
    assert modules
    assert [name for name in modules if not (ROOT / name).is_file()] == []
    assert len(set(modules)) == len(modules)


def test_the_walk_of_an_update_enters_few_modules() -> None:
    assert len(walk()) <= MOST_MODULES
