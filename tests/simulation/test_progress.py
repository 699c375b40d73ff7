from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.operator.notebook import Cell
from atoll.simulation import Cohort, Federation, Job, SetupError, progress
from tests.patience import WAIT_S
from tests.simulation.test_federation import MODEL, Stepping, played

PROGRAM = """
import sys
from tests.simulation.test_federation import played
played()
sys.stderr.write("turned off")
played(progress=False)
"""


def shown_on_a_terminal() -> str:
    """What the program shows on stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stderr=theirs, stdin=theirs, cwd=Path(__file__).parents[2]) as process:
        os.close(theirs)
        parts = []
        while part := _read(ours):
            parts.append(part)
        assert process.wait(WAIT_S) == 0
    os.close(ours)
    return b"".join(parts).decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_a_terminal_shows_a_bar_unless_it_is_turned_off() -> None:
    by_default, turned_off = shown_on_a_terminal().split("turned off")
    assert "simulating job" in by_default
    assert turned_off == ""


def test_elsewhere_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    played()
    assert capfd.readouterr() == ("", "")


def test_a_notebook_draws_a_bar_in_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    class Handle:
        def update(self, value: Any) -> None:
            drawn.append(value._repr_html_())

    def display(value: Any, *, display_id: bool) -> Handle:
        assert display_id
        drawn.append(value._repr_html_())
        return Handle()

    monkeypatch.setattr(progress, "screen", lambda: Cell(display))
    played()
    assert drawn[0].startswith('<progress value="0" max="2"></progress> simulating job')
    assert drawn[-1].startswith('<progress value="2" max="2"></progress>')
    count = len(drawn)
    played(progress=False)
    assert len(drawn) == count


def test_a_function_is_called_with_the_rounds() -> None:
    calls: list[tuple[int, int]] = []
    played(progress=lambda *rounds: calls.append(rounds))
    assert (calls[0], calls[-1]) == ((0, 2), (2, 2))


def test_what_is_no_progress_is_refused() -> None:
    federation = Federation(participants=Stepping, population=2)
    with pytest.raises(SetupError, match="progress = 'bar': give True, False, or a function such as print"):
        federation.run(Job(rounds=1, cohort=Cohort(size=2)), initial=MODEL, progress="bar")  # type: ignore[arg-type]
