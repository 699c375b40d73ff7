"""A heat map of the distribution of rows, drawn as SVG without a library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.text.figures import counted

By: TypeAlias = Literal["rows", "share"]

MAX_ROWS = 60
"""Maximum number of drawn participants; if there are more, evenly spaced ones are drawn."""
MAX_COLUMNS = 40
"""Maximum number of drawn classes; if there are more, the most frequent are drawn."""
NUMBERS_UP_TO = 20
"""Maximum number of columns whose cells have room for their number."""

_WIDTH, _LEFT, _RIGHT, _TOP, _FOOT = 760, 92, 110, 34, 26
_ROOM = 46
"""Width of the widest cell."""
_BAR = 60
_SMALL = 8
_STYLE = """
.atoll-holdings {
  font: 11px system-ui, sans-serif;
  --ink: #17212b; --dim: #5b6875; --cell: #0f766e; --none: #eef1f4; --on: #fff;
}
@media (prefers-color-scheme: dark) {
  .atoll-holdings { --ink: #e3e9ef; --dim: #93a1af; --cell: #3db5a6; --none: #1f2a33; --on: #10161c; }
}
.atoll-holdings text { fill: var(--dim); }
.atoll-holdings .n { fill: var(--ink); text-anchor: middle; font-size: 10px; }
.atoll-holdings .on { fill: var(--on); }
.atoll-holdings .c { fill: var(--cell); }
.atoll-holdings .z { fill: var(--none); }
"""


@dataclass(frozen=True)
class _Grid:
    """The drawn cells: ``rows`` and ``columns`` are indices of participants and classes, ``shade`` is from 0 to 1."""

    rows: list[int]
    columns: list[int]
    shade: NDArray[np.float64]
    row_height: float
    cell_width: float

    @property
    def width(self) -> float:
        return self.cell_width * len(self.columns)


def heat_map(classes: Sequence[str], counts: NDArray[np.int64], by: By = "rows") -> str:
    """Draw participants down and classes across.

    Args:
        classes: names of the classes.
        counts: rows of each class for each participant, int64 [population, classes].
        by: shade cells by the number of ``rows``, or by the ``share`` of the participant's rows.
    """
    grid = _grid(counts, by)
    body = [*_header(classes, grid), *_cells(classes, counts, grid), *_totals(counts, grid)]
    below = _TOP + len(grid.rows) * grid.row_height
    body.append(_text(_LEFT, below + 17, _caption(counts, grid, by)))
    width, height = max(_LEFT + grid.width + _RIGHT, 480), below + _FOOT
    label = f"rows of {counted(counts.shape[1], 'class', 'classes')} held by {counted(len(counts), 'participant')}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="atoll-holdings" role="img" aria-label="{label}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        'style="max-width: 100%; height: auto">'
        f"<style>{_STYLE}</style>{''.join(body)}</svg>"
    )


def thumbnail(counts: NDArray[np.int64], by: By = "rows") -> str:
    """Draw only the cells, without text, for a table of many partitions."""
    grid = replace(_grid(counts, by), cell_width=_SMALL, row_height=_SMALL)
    width, height = grid.width, _SMALL * len(grid.rows)
    cells = (
        _cell(at * _SMALL, row * _SMALL, grid, float(grid.shade[row, at]))
        for row in range(len(grid.rows))
        for at in range(len(grid.columns))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="atoll-holdings" role="img" aria-label="who holds what" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
        f"<style>{_STYLE}</style>{''.join(cells)}</svg>"
    )


def _grid(counts: NDArray[np.int64], by: By) -> _Grid:
    population, classes = counts.shape
    rows = np.unique(np.linspace(0, population - 1, min(population, MAX_ROWS)).round().astype(int))
    columns = np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:MAX_COLUMNS])
    of = counts.max(initial=1) if by == "rows" else np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shade = (counts / of)[np.ix_(rows, columns)]
    cell_width = min(_ROOM, (_WIDTH - _LEFT - _RIGHT) / min(classes, MAX_COLUMNS))
    return _Grid(rows.tolist(), columns.tolist(), shade, 20 if len(rows) <= 30 else 14, cell_width)


def _header(classes: Sequence[str], grid: _Grid) -> Iterator[str]:
    letters = max(1, int(grid.cell_width / 6))
    for at, column in enumerate(grid.columns):
        yield _text(_LEFT + (at + 0.5) * grid.cell_width, _TOP - 8, _short(classes[column], letters), "middle")
    yield _text(_LEFT + grid.width + 8, _TOP - 8, "rows")


def _cells(classes: Sequence[str], counts: NDArray[np.int64], grid: _Grid) -> Iterator[str]:
    numbered = len(grid.columns) <= NUMBERS_UP_TO and grid.row_height >= 20
    for row, participant in enumerate(grid.rows):
        top = _TOP + row * grid.row_height
        yield _text(_LEFT - 8, top + grid.row_height / 2 + 4, f"participant {participant}", "end")
        for at, column in enumerate(grid.columns):
            count, shade = int(counts[participant, column]), float(grid.shade[row, at])
            left = _LEFT + at * grid.cell_width
            yield _cell(left, top, grid, shade, f"participant {participant}, {classes[column]}: {count:,}")
            if numbered and count:
                middle = left + grid.cell_width / 2
                yield f'<text class="n{" on" if shade > 0.55 else ""}" x="{middle:g}" y="{top + 14:g}">{count}</text>'


def _cell(left: float, top: float, grid: _Grid, shade: float, title: str = "") -> str:
    """A cell; its title is shown on hover."""
    look = f'class="c" fill-opacity="{max(shade, 0.04):.2f}"' if shade else 'class="z"'
    size = f'x="{left + 0.5:g}" y="{top + 0.5:g}" width="{grid.cell_width - 1:g}" height="{grid.row_height - 1:g}"'
    return f"<rect {look} {size}><title>{escape(title)}</title></rect>" if title else f"<rect {look} {size}/>"


def _totals(counts: NDArray[np.int64], grid: _Grid) -> Iterator[str]:
    """A bar with the number of rows for each drawn participant."""
    sizes = counts.sum(axis=1)
    left, most = _LEFT + grid.width + 8, max(int(sizes.max(initial=1)), 1)
    for row, participant in enumerate(grid.rows):
        top, size = _TOP + row * grid.row_height, int(sizes[participant])
        length = _BAR * size / most
        yield f'<rect class="c" x="{left:g}" y="{top + 4:g}" width="{length:.1f}" height="{grid.row_height - 8:g}"/>'
        yield _text(left + length + 4, top + grid.row_height / 2 + 4, f"{size:,}")


def _caption(counts: NDArray[np.int64], grid: _Grid, by: By) -> str:
    population, classes = counts.shape
    shaded = f"darkest: {counts.max(initial=0):,} rows" if by == "rows" else "darkest: all rows of the participant"
    parts = [shaded]
    if len(grid.rows) < population:
        parts.append(f"{len(grid.rows)} of {population:,} participants")
    if len(grid.columns) < classes:
        parts.append(f"the {len(grid.columns)} most frequent of {classes:,} classes")
    return "; ".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
