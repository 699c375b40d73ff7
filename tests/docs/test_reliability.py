"""The reliability page names tests that exist."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:::([\w:]+))?`", PAGE)))
PROMISES = re.findall(r"^\d+\. .*$", PAGE, re.MULTILINE)
PROMISES_OF_SEVERAL = re.findall(r"^- \*\*.*$", PAGE[: PAGE.index("## Faults")], re.MULTILINE)


def names_in(body: Sequence[ast.stmt], above: str = "") -> Iterator[str]:
    """The tests and classes of a module as pytest names them: ``TestA``, ``TestA::test_b``, ``test_c``."""
    for item in body:
        if isinstance(item, ast.ClassDef):
            yield above + item.name
            yield from names_in(item.body, f"{above}{item.name}::")
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name.startswith("test_"):
            yield above + item.name


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_every_test_that_the_page_names_exists(path: str, test: str) -> None:
    file = ROOT / "tests" / path
    assert file.is_file(), path
    assert not test or test in set(names_in(ast.parse(file.read_text()).body)), f"{path} has no {test}"


def test_none_is_named_without_its_file() -> None:
    bare = [span for span in re.findall(r"`([^`\n]+)`", PAGE) if re.fullmatch(r"(::)?([Tt]est_?\w+)(::\w+)*", span)]
    assert not bare


def test_each_promise_ends_with_its_tests() -> None:
    assert len(PROMISES) == 10
    assert len(PROMISES_OF_SEVERAL) == 7
    for line in (*PROMISES, *PROMISES_OF_SEVERAL):
        assert re.search(r"`[\w/]+\.py::[\w:]+`$", line), line
