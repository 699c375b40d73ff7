"""The report's plots: metrics over rounds, round times, who reported, and the members of one round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from atoll.server.control import MemberSummary, RoundSummary
from atoll.server.control.curves import Panel, Source
from atoll.server.control.names import names_of
from atoll.server.control.timeline import STEPS, slowest_first, step_spans
from atoll.server.control.words import round_label
from atoll.server.report.svg import LINE, drawing, stand_in, to_svg
from atoll.text.figures import counted

HALF_IN = (5.4, 3.0)
FULL_IN = (10.8, 2.6)
DENSE_COLUMNS = 100
MARKERS_UP_TO = 40
MAX_BARS = 30
"""Maximum number of members in the figure of a round."""
STATUSES = (
    "reported",
    "declined",
    "failed",
    "silent",
    "timed_out",
    "late",
    "rejected",
    "over_selected",
    "stopped",
    "invited",
    "training",
)
"""Statuses in legend order; each has a colour ``--s-NAME`` on the page."""

_SOURCES = {source: stand_in(index) for index, source in enumerate(Source)}
_SOURCE_COLOURS = {colour: f"--{source.value}" for source, colour in _SOURCES.items()}
_TIMES = {"round open": stand_in(8), "between rounds": stand_in(9), "attempts abandoned": stand_in(10)}
_TIME_COLOURS = dict(zip(_TIMES.values(), ("--open", "--between", "--abandoned"), strict=True))
_CELLS = {status: stand_in(16 + index) for index, status in enumerate(STATUSES)}
_CELL_COLOURS = {colour: f"--s-{status}" for status, colour in _CELLS.items()}
_UNDRAWN = stand_in(15)
_CELL_GAP = 0.06
_STEPS = {step: stand_in(32 + index) for index, step in enumerate(STEPS)}
_STEP_COLOURS = {colour: f"--t-{step}" for step, colour in _STEPS.items()}


@dataclass(frozen=True)
class Grid:
    """Participants by attempts: ``cells[row][column]`` is a status, or empty if the participant was not drawn."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def metric_figure(panel: Panel, name: str) -> str:
    """One metric over the rounds, a curve for each source; ``name`` is unique on the page."""
    with drawing():
        figure, axes = new_figure(HALF_IN)
        draw_panel(axes, panel, _SOURCES)
        _legend(figure, axes)
        return to_svg(figure, name, f"{panel.metric} over rounds", _SOURCE_COLOURS)


def draw_panel(axes: Axes, panel: Panel, colours: Mapping[Source, str]) -> None:
    """Draw one metric over the rounds, a curve for each source."""
    for curve in panel.curves:
        x, y = zip(*curve.points, strict=True)
        best = curve is panel.best_curve
        axes.plot(
            x,
            y,
            color=colours[curve.source],
            linewidth=2.2 if best else 1.3,
            linestyle=":" if curve.source is Source.TRAINING else "-",
            marker="o" if len(x) <= MARKERS_UP_TO else None,
            markersize=3.4 if best else 2.2,
            label=curve.source.label,
            zorder=3 if best else 2,
        )
    axes.set_title(panel.metric)
    axes.set_xlabel("rounds behind the model")
    axes.margins(x=0.02, y=0.12)


def time_figure(rounds: Sequence[RoundSummary], size: tuple[float, float] = FULL_IN) -> str:
    """Seconds per round: open, waiting between rounds, and spent on abandoned attempts."""
    numbers, parts = _time_parts(rounds)
    with drawing():
        figure, axes = new_figure(size)
        bottom = np.zeros(len(numbers))
        for name, seconds in parts.items():
            if seconds.any():
                axes.bar(numbers, seconds, bottom=bottom, width=0.8, color=_TIMES[name], label=name, linewidth=0)
                bottom += seconds
        axes.set_title("time per round, seconds")
        axes.set_xlabel("round")
        axes.margins(x=0.02)
        _legend(figure, axes)
        return to_svg(figure, "times", "seconds per round", _TIME_COLOURS)


def presence_figure(grid: Grid) -> str:
    """A heat map of reports: one row per participant, one column per attempt."""
    height = 0.75 + 0.19 * len(grid.rows)
    with drawing(axes__grid=False):
        figure, axes = new_figure((FULL_IN[0], height))
        for status, colour in (("", _UNDRAWN), *_CELLS.items()):
            _fill(axes, grid, status, colour)
        axes.set_xlim(-0.5, len(grid.columns) - 0.5)
        axes.set_ylim(len(grid.rows) - 0.5, -0.5)
        axes.set_yticks(range(len(grid.rows)), grid.rows, fontsize=8)
        step = max(1, -(-len(grid.columns) // 30))
        axes.set_xticks(range(0, len(grid.columns), step), grid.columns[::step], fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("round")
        label = f"who reported: {counted(len(grid.rows), 'participant')} by {counted(len(grid.columns), 'round')}"
        return to_svg(figure, "presence", label, {**_CELL_COLOURS, _UNDRAWN: "--undrawn"})


def slowest_round(rounds: Sequence[RoundSummary]) -> RoundSummary | None:
    """The released round with known members that took longest from invitation to close, or None."""
    timed = [item for item in rounds if item.released and any(step_spans(member) for member in item.members)]
    return max(timed, key=lambda item: item.duration_s or 0.0, default=None)


def timeline_figure(item: RoundSummary) -> str:
    """The steps of the slowest ``MAX_BARS`` members of a round, in seconds since the invitation."""
    shown, names = [member for member in slowest_first(item) if step_spans(member)][:MAX_BARS], names_of((item,))
    with drawing(axes__grid=True, axes__grid__axis="x"):
        figure = Figure(figsize=(FULL_IN[0], 1.15 + 0.19 * len(shown)), layout="constrained")
        axes = figure.subplots()
        for step, colour in _STEPS.items():
            rows, starts, lengths = _of_step(shown, step)
            if rows:
                axes.barh(rows, lengths, left=starts, height=0.7, color=colour, label=step, linewidth=0)
        axes.set_yticks(range(len(shown)), [names[member.participant] for member in shown], fontsize=8)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(length=0)
        axes.set_xlabel("seconds since the invitation")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(STEPS), handlelength=1.4)
        label = f"what the members of round {round_label(item)} did"
        return to_svg(figure, "timeline", label, _STEP_COLOURS)


def new_figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure with one axes, of the given size in inches, whose x axis has integer ticks."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(color=LINE)
    return figure, axes


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=1.4, columnspacing=1.2)


def _time_parts(rounds: Sequence[RoundSummary]) -> tuple[list[int], dict[str, np.ndarray]]:
    timed = [(item, item.duration_s) for item in rounds if item.opened_at is not None]
    numbers = sorted({item.round + 1 for item, _ in timed})
    column = {number: index for index, number in enumerate(numbers)}
    parts = {name: np.zeros(len(numbers)) for name in _TIMES}
    closed_before: float | None = None
    for item, seconds in timed:
        at = column[item.round + 1]
        if closed_before is not None and item.opened_at is not None:
            parts["between rounds"][at] += max(0.0, item.opened_at - closed_before)
        parts["attempts abandoned" if item.phase == "abandoned" else "round open"][at] += seconds or 0.0
        closed_before = item.closed_at
    return numbers, parts


def _fill(axes: Axes, grid: Grid, status: str, colour: str) -> None:
    """Draw all cells of a status as one path, and narrow neighbours as one box, to keep the file small."""
    dense = len(grid.columns) > DENSE_COLUMNS
    gap = 0.0 if dense else _CELL_GAP
    boxes = [
        _box(start - 0.5 + gap, row - 0.5 + _CELL_GAP, length - 2 * gap, 1 - 2 * _CELL_GAP)
        for row, statuses in enumerate(grid.cells)
        for start, length in _runs(statuses, status, 0 if dense else 1)
    ]
    if boxes:
        axes.add_patch(PathPatch(Path.make_compound_path(*boxes), facecolor=colour, linewidth=0))


def _box(left: float, top: float, width: float, height: float) -> Path:
    right, bottom = left + width, top + height
    return Path([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], closed=True)


def _runs(statuses: Sequence[str], status: str, longest: int) -> Iterator[tuple[int, int]]:
    """(first column, number of columns) of each run of ``status``; at most ``longest`` columns, 0 for any number."""
    start = 0
    for found, same in groupby(statuses):
        length = len(tuple(same))
        if found == status and longest:
            yield from ((start + at, longest) for at in range(length))
        elif found == status:
            yield start, length
        start += length


def _of_step(shown: Sequence[MemberSummary], step: str) -> tuple[list[int], list[float], list[float]]:
    """Rows, starts and lengths of one step's bars."""
    found = [(row, one) for row, member in enumerate(shown) for one in step_spans(member) if one.step == step]
    return [row for row, _ in found], [one.start_s for _, one in found], [one.end_s - one.start_s for _, one in found]
