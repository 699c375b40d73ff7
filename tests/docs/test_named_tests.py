"""Every test file and test that a page names exists, even if the page leaves out the folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")))
FILES = [*sorted((ROOT / "tests").rglob("test_*.py")), *sorted((ROOT / "client").rglob("test_*.py.txt"))]
"""Tests, and the templates of those that ``atoll new`` writes."""
NAMED = re.compile(r"\b(test_\w+\.py)(?:::(\w+))?(?:::(\w+))?(\.\.\.)?")
"""A file, a class or test in it, a test of the class; with dots only the beginning is named."""


def sources(name: str) -> str:
    """The text of all test files of that name."""
    return "\n".join(path.read_text(encoding="utf-8") for path in FILES if path.name.removesuffix(".txt") == name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    missing = []
    for named in NAMED.finditer(page.read_text(encoding="utf-8")):
        file, *tests, dots = named.groups()
        text = sources(file)
        end = "" if dots else r"\b"
        if not text or not all(re.search(rf"\b(?:def|class) {test}{end}", text) for test in tests if test):
            missing.append(named.group())
    assert missing == []
