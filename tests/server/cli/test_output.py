from __future__ import annotations

import math
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from atoll.server.cli import output
from atoll.server.cli.output import print_json, print_table, steps, styled, when
from atoll.text.figures import in_bytes


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (3_210_000_000, "3.21 GB"), (5e15, "5e+03 TB")]
)
def test_sizes_have_decimal_units(count: float, text: str) -> None:
    assert in_bytes(count) == text


def test_nothing_is_cut_where_the_output_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "n>"), [("x" * 200, 3), (Text("[red]"), 12)], "none")
    lines = capsys.readouterr().out.splitlines()
    assert "x" * 200 in lines[2]
    assert "[red]" in lines[3]
    assert all(line == line.rstrip() for line in lines)


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [], "nothing yet")
    assert capsys.readouterr().out == "nothing yet\n"


def test_steps_are_shown_where_there_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with steps("working") as show:
        show(0, 4, "the first")
    assert capsys.readouterr() == ("", "working\n")
    screen = StringIO()
    monkeypatch.setattr(output, "console", lambda **_: Console(file=screen, force_terminal=True, width=100))
    with steps("working") as show:
        for done, step in enumerate(("the first", "the second")):
            show(done, 4, step)
    assert "working: the second" in screen.getvalue()
    assert "1/4" in screen.getvalue()


def test_words_and_times() -> None:
    assert styled("timed_out").plain == "timed out"
    assert when(None) == "-"
    assert when(0.0)[:3] in {"197", "196"}


def test_json_has_no_numbers_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"metrics": {"loss": math.inf, "accuracy": 0.5, "x": math.nan}, "list": [-math.inf, 1.0]}, line=True)
    assert capsys.readouterr().out == '{"metrics": {"accuracy": 0.5}, "list": [null, 1.0]}\n'
