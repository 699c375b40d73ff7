"""A run as HTML for notebooks: its state, its last rounds and its curves. No scripts; names are escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from atoll.server.control import RoundSummary, RunDetail
from atoll.server.control.curves import Panel, latest, panels, shown
from atoll.server.control.words import duration, kind_words, round_label

SHOWN_ROUNDS, SHOWN_PANELS = 10, 3
_WIDTH, _HEIGHT = 220.0, 60.0
_HEADINGS = ("round", "kind", "phase", "reports", "time")


def page(detail: RunDetail) -> str:
    """A run: name, state, curves and its last rounds."""
    run = detail.run
    reason = f": {escape(run.reason)}" if run.reason else ""
    parts = [
        f"<p><b>{escape(run.name)}</b> <code>{escape(run.run)}</code> {escape(run.status)}{reason}<br>",
        f'<progress value="{run.rounds_released}" max="{run.rounds_total}"></progress> ',
        f"{run.rounds_released} of {run.rounds_total} rounds released</p>",
        *map(_curve, panels(detail.rounds)[:SHOWN_PANELS]),
        *_table(detail.rounds[-SHOWN_ROUNDS:], hidden=max(0, len(detail.rounds) - SHOWN_ROUNDS)),
    ]
    return f"<div>{''.join(parts)}</div>"


def error_page(run: str, error: Exception) -> str:
    """A message that a run cannot be shown, with the reason."""
    return f"<p><code>{escape(run)}</code> cannot be shown: {escape(str(error))}</p>"


def _table(rounds: Sequence[RoundSummary], *, hidden: int) -> Iterator[str]:
    if hidden:
        yield f"<p>{hidden} earlier rounds are not shown</p>"
    metrics = shown(rounds)
    yield f"<table><tr>{''.join(f'<th>{escape(heading)}</th>' for heading in (*_HEADINGS, *metrics))}</tr>"
    for item in rounds:
        cells = (
            round_label(item),
            kind_words(item),
            item.phase,
            f"{item.reported}/{item.cohort}",
            "" if item.duration_s is None else duration(item.duration_s),
            *(_figure(latest(item, name)) for name in metrics),
        )
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _curve(panel: Panel) -> str:
    """A metric as a line, with its last value."""
    points = panel.best_curve.points
    last_x = max(x for x, _ in points) or 1
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = high - low or 1.0
    line = " ".join(f"{x / last_x * _WIDTH:.1f},{_HEIGHT - (y - low) / span * _HEIGHT:.1f}" for x, y in points)
    return (
        f'<figure style="display:inline-block;margin:0 1em 0 0"><figcaption>{escape(panel.metric)} '
        f"{panel.final:.4g}</figcaption>"
        f'<svg width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" viewBox="-2 -2 {_WIDTH + 4:.0f} {_HEIGHT + 4:.0f}">'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg></figure>'
    )
