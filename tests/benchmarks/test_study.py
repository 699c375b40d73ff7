"""The walk of a new user: its commands are the page's, and a smoke run performs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.options import Options
from benchmarks.study import MOST_COMMANDS, PAGE, _figures, _performed, documented, run
from benchmarks.terminal import Terminal, TerminalError
from tests.patience import WAIT_S


def test_the_commands_are_those_of_the_page() -> None:
    commands = documented(PAGE.read_text(encoding="utf-8"))
    assert len(commands) <= MOST_COMMANDS
    assert commands[0].startswith("python3 -m venv")
    assert commands[-1].startswith("atoll run model latest")
    with pytest.raises(ValueError, match="no section"):
        documented("# A study\n")


def test_the_commands_are_typed_one_after_the_other(tmp_path: Path) -> None:
    """Stand-ins: the real ones are in the next test, and most of them in ``tests/system/test_new_study.py``."""
    server = "atoll server start"
    (tmp_path / "atoll").write_text("#!/bin/sh\nif [ $2 = start ]; then echo serving on port 1; fi; exec sleep 60\n")
    (tmp_path / "atoll").chmod(0o755)
    commands = [
        "mkdir -p wards && cd wards",
        server,
        "for n in 0 1 2; do (echo connected to $n; exec sleep 60) & done",
        "basename $PWD > place",
    ]
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    walk = _performed(commands, tmp_path, environment)
    assert list(walk.seconds) == commands
    assert list(walk.silences_s) == [server]
    assert (tmp_path / "wards" / "place").read_text() == "wards\n"
    figures = _figures(commands, walk, "study")
    assert figures[0].value == len(commands)
    assert figures[-1].name == f"longest silence, in `{server}`"


@pytest.mark.system
@pytest.mark.every_study
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
