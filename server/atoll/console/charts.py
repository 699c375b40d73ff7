"""Curves of metrics as points of an SVG, which the template ``charts.html.j2`` draws with the page's colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atoll.server.control.curves import Panel

WIDTH, HEIGHT = 400, 140
"""Size of the plot's area, in the units of its SVG."""
MAX_POINTS = 300
"""Maximum number of points of a drawn curve; a longer one keeps the extremes of each stretch."""
_MARKERS_UP_TO = 40

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve: ``source`` is server, eval or train, ``points`` the SVG's, ``markers`` its points if they are few."""

    source: str
    label: str
    points: str
    markers: tuple[Point, ...]


@dataclass(frozen=True)
class Chart:
    """One metric over the rounds behind the model.

    Attributes:
        metric: its name.
        final: its last value by the most trustworthy source.
        lines: a curve for each source.
        low: value at the lower edge.
        high: value at the upper edge.
        first: rounds at the left edge.
        last: rounds at the right edge.
    """

    metric: str
    final: float
    lines: tuple[Line, ...]
    low: float
    high: float
    first: int
    last: int

    @property
    def described(self) -> str:
        """The chart in words, for screen readers."""
        return (
            f"{self.metric} from {self.first} to {self.last} rounds behind the model: "
            f"between {self.low:.4g} and {self.high:.4g}, lastly {self.final:.4g}"
        )


def chart(panel: Panel) -> Chart:
    """The chart of a metric."""
    every = [point for curve in panel.curves for point in curve.points]
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    lines = []
    for curve in panel.curves:
        drawn = tuple(_placed(thinned(curve.points), first, last, low, high))
        text = " ".join(f"{x:g},{y:g}" for x, y in drawn)
        markers = drawn if len(drawn) <= _MARKERS_UP_TO else ()
        lines.append(Line(curve.source.value, curve.source.label, text, markers))
    return Chart(panel.metric, panel.final, tuple(lines), low, high, first, last)


def thinned(points: Sequence[tuple[int, float]], most: int = MAX_POINTS) -> Sequence[tuple[int, float]]:
    """At most ``most`` of the points: the lowest and the highest of each stretch, in order, with both ends."""
    if len(points) <= most:
        return points
    stretches = (most - 2) // 2
    inner = points[1:-1]
    kept = [points[0]]
    for index in range(stretches):
        part = inner[index * len(inner) // stretches : (index + 1) * len(inner) // stretches]
        kept += sorted({min(part, key=_value), max(part, key=_value)})
    return (*kept, points[-1])


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _placed(points: Sequence[tuple[int, float]], first: int, last: int, low: float, high: float) -> Iterator[Point]:
    """Points in the plot's area; a constant lies in its middle."""
    for x, y in points:
        right = (x - first) / (last - first) if last > first else 0.5
        yield round(right * WIDTH, 1), round(HEIGHT - _share(y, low, high) * HEIGHT, 1)


def _share(value: float, low: float, high: float) -> float:
    """The position of a value between two others, from 0 to 1; halves them first, as a difference may overflow."""
    span = high / 2 - low / 2
    found = (value / 2 - low / 2) / span if span > 0 else 0.5
    return found if math.isfinite(found) else 0.5
