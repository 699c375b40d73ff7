"""Live progress: an output that is redrawn in a notebook, lines of text elsewhere."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol

from atoll.operator.history import ENDED_PHASES, History
from atoll.server.control.words import round_label


class Screen(Protocol):
    """Shows a running run."""

    def show(self, history: History) -> None:
        """The rounds so far."""
        ...


class Lines:
    """One line on stdout for each round that ended."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, history: History) -> None:
        """Print new rounds."""
        ended = [item for item in history.rounds if item.phase in ENDED_PHASES]
        for item in ended[self._shown :]:
            metrics = ", ".join(f"{name} {value:.4g}" for name, value in item.metrics.items())
            counts = f"{item.reported} of {item.cohort} reported"
            line = ", ".join(part for part in (f"round {round_label(item)} {item.phase}", counts, metrics) if part)
            sys.stdout.write(f"{line}\n")
        self._shown = max(self._shown, len(ended))


class Cell:
    """The output of a notebook's cell, redrawn in place; ``display`` is IPython's."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, history: History) -> None:
        """Draw the history in place of the last one."""
        self.draw(history)

    def draw(self, value: object) -> None:
        """Draw a displayable value in place of the last one."""
        if self._handle is None:
            self._handle = self._display(value, display_id=True)
        else:
            self._handle.update(value)


def screen() -> Screen:
    """The cell if this process is a notebook's kernel, otherwise lines; a script may have ipykernel loaded too."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):
        return Lines()
    return Cell(importlib.import_module("IPython.display").display)
