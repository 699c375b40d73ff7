"""The live picture of a run: its progress, the current round, and the ended rounds."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atoll.server.cli.formats import round_columns, round_row
from atoll.server.cli.output import styled
from atoll.server.control import Progress, RoundSummary, RunDetail
from atoll.server.control.curves import panels, shown
from atoll.server.control.words import duration, fragment_words, round_label

SHOWN_ROUNDS = 8
BAR_COLUMNS = 36
SPARKS = "▁▂▃▄▅▆▇█"


class Picture:
    """The known state of a run, drawn on demand; ``clock`` makes the deadline count down between changes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._progress: Progress | None = None
        self._changed_at = 0.0
        self._rounds: tuple[RoundSummary, ...] = ()

    def change(self, progress: Progress, now: float) -> None:
        """Set the state of the run at ``now`` of the clock."""
        self._progress, self._changed_at = progress, now

    def history(self, detail: RunDetail) -> None:
        """Set the rounds so far."""
        self._rounds = detail.rounds

    def render(self) -> RenderableType:
        """Draw the current picture."""
        if self._progress is None:
            return Text("waiting for the server", style="dim")
        run = self._progress.run
        title = Text.assemble(
            (run.name, "bold"),
            "  ",
            (run.run, "dim"),
            "  ",
            styled(run.status),
            f"  {self._progress.connected} connected",
        )
        lines = Table.grid(padding=(0, 2))
        lines.add_row(
            "rounds", _bar(run.rounds_released, run.rounds_total), f"{run.rounds_released} of {run.rounds_total}"
        )
        if run.status == "paused" and run.reason:
            lines.add_row("paused", "", Text(run.reason))
        elif self._progress.round is not None and not run.ended:
            lines.add_row(*self._round_in_work(self._progress.round))
        for panel in panels(self._rounds)[:2]:
            values = [value for _, value in panel.best_curve.points]
            lines.add_row(
                Text(panel.metric), Text(sparkline(values[-BAR_COLUMNS:]), style="cyan"), f"{panel.final:.4f}"
            )
        return Group(title, lines, self._table())

    def _round_in_work(self, item: RoundSummary) -> tuple[RenderableType, ...]:
        label = "evaluation" if item.kind == "evaluate" else f"round {round_label(item)}"
        if item.phase == "created":
            return Text(label), _bar(0, 1), Text(f"waiting for participants, {item.wanted} wanted")
        words = ", ".join(part for part in (item.phase, fragment_words(item)) if part)
        words += f", {item.reported} of {item.cohort} reported"
        if item.quorum:
            words += f" (quorum {item.quorum})"
        remaining_s = self._remaining_s(item)
        if remaining_s is not None:
            words += f", {duration(remaining_s)} to the deadline"
        return Text(label), _bar(item.reported, max(item.wanted or item.cohort, 1)), Text(words)

    def _remaining_s(self, item: RoundSummary) -> float | None:
        if item.remaining_s is None:
            return None
        return max(0.0, item.remaining_s - (self._clock() - self._changed_at))

    def _table(self) -> RenderableType:
        ended = [item for item in self._rounds if item.phase in {"released", "abandoned"}]
        if not ended:
            return Text("")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
        metrics = shown(ended)
        for column in round_columns(metrics):
            table.add_column(Text(column.removesuffix(">")), justify="right" if column.endswith(">") else "left")
        for item in ended[-SHOWN_ROUNDS:]:
            table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in round_row(item, metrics)))
        return table


def sparkline(values: list[float]) -> str:
    """Values as character bars, scaled from the smallest to the largest."""
    low, high = min(values), max(values)
    if high == low:
        return SPARKS[-1] * len(values)
    return "".join(SPARKS[round((value - low) / (high - low) * (len(SPARKS) - 1))] for value in values)


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=total, completed=min(done, total), width=BAR_COLUMNS)
