"""The chapter on many GPUs names tests that exist, and every page beside it."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.test_reliability import names_in

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "datacenter.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_every_test_that_the_page_names_exists(path: str, test: str) -> None:
    file = ROOT / "tests" / "datacenter" / path
    assert file.is_file(), path
    assert test in set(names_in(ast.parse(file.read_text(encoding="utf-8")).body)), f"{path} has no {test}"


def test_every_row_of_the_table_says_where_equality_and_speed_are_known_from_and_what_ran() -> None:
    table = PAGE[PAGE.index("| technique |") : PAGE.index("## Sharding")]
    rows = [row for row in table.splitlines()[2:] if row.startswith("|")]
    assert len(rows) > 20
    for row in rows:
        technique, _, _, equality, speed, ran = (cell.strip() for cell in row.strip("|").split("|"))
        assert re.search(r"`[\w/]+\.py::\w+`", equality), technique
        assert speed, technique
        assert ran in {"one H200", "not run on GPU", "CPU only", "no GPU needed"}, technique


def test_every_page_beside_it_is_linked() -> None:
    pages = {path.name for path in (ROOT / "docs" / "datacenter").glob("*.md")}
    assert pages == set(re.findall(r"\(datacenter/([\w-]+\.md)\)", PAGE))
