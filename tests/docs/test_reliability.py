"""The reliability page names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py)(?:::([a-z0-9_]+))?`", PAGE)))
PROMISES = re.findall(r"^\d+\. .*$", PAGE, re.MULTILINE)


def functions_of(path: Path) -> set[str]:
    """The functions of a module and of its classes."""
    return {
        item.name
        for item in ast.walk(ast.parse(path.read_text()))
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_every_test_that_the_page_names_exists(path: str, test: str) -> None:
    file = ROOT / "tests" / path
    assert file.is_file(), path
    assert not test or test in functions_of(file), f"{path} has no {test}"


def test_the_promise_has_ten_lines_and_each_names_its_test() -> None:
    assert len(PROMISES) == 10
    for line in PROMISES:
        assert re.search(r"`[a-z_/]+\.py::test_[a-z0-9_]+`$", line), line
