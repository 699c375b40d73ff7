"""Curves as points of an SVG."""

from __future__ import annotations

import math

import pytest

from atoll.console.charts import HEIGHT, MAX_POINTS, WIDTH, chart, thinned
from atoll.server.control.curves import Curve, Panel, Source


def test_a_curve_fills_the_plot() -> None:
    panel = Panel("accuracy", (Curve(Source.SERVER, ((0, 0.5), (5, 0.75), (10, 1.0))),))
    found = chart(panel)
    assert found.lines[0].points == f"0,{HEIGHT} {WIDTH / 2:g},{HEIGHT / 2:g} {WIDTH},0"
    assert (found.low, found.high, found.first, found.last, found.final) == (0.5, 1.0, 0, 10, 1.0)


def test_all_curves_share_the_axes() -> None:
    panel = Panel("loss", (Curve(Source.SERVER, ((1, 1.0), (2, 2.0))), Curve(Source.TRAINING, ((0, 0.0), (4, 4.0)))))
    found = chart(panel)
    assert (found.low, found.high, found.first, found.last) == (0.0, 4.0, 0, 4)
    assert found.lines[0].points == f"{WIDTH / 4:g},{HEIGHT * 3 / 4:g} {WIDTH / 2:g},{HEIGHT / 2:g}"


@pytest.mark.parametrize("points", [((3, 0.5),), ((1, 0.5), (2, 0.5))])
def test_a_constant_lies_in_the_middle(points: tuple[tuple[int, float], ...]) -> None:
    drawn = chart(Panel("x", (Curve(Source.EVALUATION, points),))).lines[0].points
    assert {pair.split(",")[1] for pair in drawn.split()} == {f"{HEIGHT / 2:g}"}


def test_values_that_span_all_floats_are_drawn() -> None:
    limit = 1.7e308
    drawn = chart(Panel("x", (Curve(Source.SERVER, ((0, -limit), (1, limit))),))).lines[0].points
    assert drawn == f"0,{HEIGHT} {WIDTH},0"


def test_a_long_curve_keeps_its_ends_and_extremes() -> None:
    points = [(x, math.sin(x / 50)) for x in range(5000)]
    points[2345] = (2345, 9.0)
    points[3456] = (3456, -9.0)
    kept = thinned(points)
    assert len(kept) <= MAX_POINTS
    assert list(kept) == sorted(set(kept))
    assert {points[0], points[-1], (2345, 9.0), (3456, -9.0)} <= set(kept)
    assert set(kept) <= set(points)


def test_a_short_curve_is_kept_whole() -> None:
    points = [(x, 0.0) for x in range(MAX_POINTS)]
    assert thinned(points) == points
