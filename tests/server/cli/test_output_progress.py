"""On a terminal, a command's label is shown before its work begins."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from rich.console import Console

from atoll.server.cli import output


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The output on a terminal."""
    shown = io.StringIO()
    monkeypatch.setattr(output, "console", lambda **_: Console(file=shown, force_terminal=True, width=100))
    return shown


@pytest.mark.parametrize("context", [output.transfers, output.steps])
def test_the_label_comes_first(terminal: io.StringIO, context: Callable[[str], AbstractContextManager[object]]) -> None:
    with context("submitting [job].toml" if context is output.transfers else "submitting job.toml"):
        assert "submitting" in terminal.getvalue()
        assert ".toml" in terminal.getvalue()


def test_a_transfer_has_a_bar_below_it(terminal: io.StringIO) -> None:
    with output.transfers("submitting job.toml") as show:
        show("send", 5, 10)
    assert "submitting job.toml" in terminal.getvalue()
    assert "sending the model" in terminal.getvalue()


def test_a_pipe_gets_neither(capsys: pytest.CaptureFixture[str]) -> None:
    with output.transfers("submitting job.toml") as show:
        show("send", 5, 10)
    assert capsys.readouterr().err == ""
