"""The progress display of a simulation: a bar on a terminal or in a notebook's cell, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape

from atoll.operator.notebook import Cell, screen
from atoll.simulation.errors import SetupError

Progress = Callable[[int, int], object]
"""Called with the number of released and of all rounds."""
SweepProgress = Callable[[int, int, str], object]
"""Called with the released rounds of all runs, the total rounds of all runs, and the current variant."""


@contextlib.contextmanager
def showing(label: str, *, asked: bool) -> Iterator[SweepProgress | None]:
    """The progress bar for this terminal or notebook, if requested; None without either.

    It starts with the first call, so that workers forked before do not inherit it.
    """
    cell = screen() if asked else None
    if isinstance(cell, Cell):
        yield _InCell(label, cell)
    elif asked and sys.stderr.isatty():
        with contextlib.ExitStack() as stack:
            yield _Bar(label, stack)
    else:
        yield None


def check_progress(progress: object) -> None:
    """Refuse a value that is neither True, False nor a function.

    Raises:
        SetupError: saying what to give.
    """
    if not (isinstance(progress, bool) or callable(progress)):
        raise SetupError(f"progress = {progress!r}: give True, False, or a function such as print")


@dataclass
class _Bar:
    """A bar on stderr, until the stack is closed."""

    label: str
    stack: contextlib.ExitStack
    show: Callable[[int, int, str], None] | None = None

    def __call__(self, done: int, total: int, step: str) -> None:
        if self.show is None:
            from atoll.server.cli.output import steps  # noqa: PLC0415 - rich loads when there is something to show

            self.show = self.stack.enter_context(steps(self.label))
        self.show(done, total, step)


@dataclass
class _InCell:
    """A bar in a notebook's cell."""

    label: str
    cell: Cell

    def __call__(self, done: int, total: int, step: str) -> None:
        self.cell.draw(
            _Html(
                f'<progress value="{done}" max="{total}"></progress> {escape(self.label)}, '
                f"{done} of {total} rounds: {escape(step)}"
            )
        )


@dataclass(frozen=True)
class _Html:
    text: str

    def _repr_html_(self) -> str:
        return self.text
