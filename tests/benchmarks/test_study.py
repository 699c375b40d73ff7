"""The walk of a new user: its commands are the page's, and a smoke run performs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.options import Options
from benchmarks.study import MOST_COMMANDS, PAGE, documented, run
from benchmarks.terminal import Terminal, TerminalError
from tests.patience import WAIT_S


def test_the_commands_are_those_of_the_page() -> None:
    commands = documented(PAGE.read_text(encoding="utf-8"))
    assert len(commands) <= MOST_COMMANDS
    assert commands[0].startswith("python3 -m venv")
    assert commands[-1].startswith("atoll run model latest")
    with pytest.raises(ValueError, match="no section"):
        documented("# A study\n")


@pytest.mark.system
def test_a_smoke_run_performs_them() -> None:
    figures = run(Options(smoke=True))
    names = [figure.name for figure in figures]
    assert figures[0].value == MOST_COMMANDS
    assert sum(name.startswith("  `") for name in names) == MOST_COMMANDS - 2, "all but environment and installation"
    assert names[-1].startswith("longest silence, in `")


def test_a_terminal_knows_when_something_was_written(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    terminal = Terminal("echo one; tail -f go & echo two", tmp_path, os.environ)
    try:
        terminal.ended(WAIT_S)
        terminal.wrote("two", WAIT_S)
        assert terminal.silence_s >= 0
        with pytest.raises(TerminalError, match="did not write 'three'"):
            terminal.wrote("three", 0.0)
    finally:
        terminal.close()


def test_a_command_that_fails_shows_what_it_wrote(tmp_path: Path) -> None:
    terminal = Terminal("echo no such thing; exit 3", tmp_path, os.environ)
    try:
        with pytest.raises(TerminalError, match="ended with 3; it wrote:\nno such thing"):
            terminal.ended(WAIT_S)
        with pytest.raises(TerminalError, match="did not write 'serving on'"):
            terminal.wrote("serving on", WAIT_S)
    finally:
        terminal.close()
