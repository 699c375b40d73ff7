"""The picture of a plan: epsilon by round, and signal-to-noise ratio by cohort."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atoll.server.privacy.planning import Plan
from atoll.server.report.svg import drawing, stand_in, to_svg
from atoll.text.figures import bound, counted

SIZE_IN = (10.8, 3.4)
_SPENT, _RATIO, _MARK = stand_in(0), stand_in(1), stand_in(2)
_COLOURS = {_SPENT: "--spent", _RATIO: "--ratio", _MARK: "--mark"}
_STYLE = """<style>
svg { --line: #d5d9de; --spent: #2364aa; --ratio: #1b7f5c; --mark: #b3541e; color: #1c2430; background: #ffffff; }
@media (prefers-color-scheme: dark) {
svg { --line: #3a434e; --spent: #7fb2ea; --ratio: #6fcfa6; --mark: #e8a06c; color: #e6e9ed; background: #14191f; }
}
</style>"""
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Privacy plan</title><body style="margin: 0">{picture}</body></html>
"""


def write_plan(plan: Plan, path: Path) -> None:
    """Write the picture: an HTML page for ``.html``, otherwise SVG.

    Raises:
        OSError: if the file cannot be written.
    """
    picture = plan_svg(plan)
    path.write_text(_PAGE.format(picture=picture) if path.suffix == ".html" else picture, encoding="utf-8")


def plan_svg(plan: Plan) -> str:
    """The picture as one ``<svg>`` element with its own colours, light and dark."""
    with drawing():
        figure = Figure(figsize=SIZE_IN, layout="constrained")
        left, right = figure.subplots(1, 2)
        _epsilon_axes(left, plan)
        _ratio_axes(right, plan)
        after = f"{bound(plan.spent[-1].epsilon)} after {counted(plan.contract.rounds, 'round')}"
        label = f"epsilon {after}, and signal/noise by cohort"
        picture = to_svg(figure, "plan", label, _COLOURS)
    start = picture.index(">") + 1
    return f"{picture[:start]}{_STYLE}{picture[start:]}"


def _epsilon_axes(axes: Axes, plan: Plan) -> None:
    axes.plot([one.rounds for one in plan.spent], [one.epsilon for one in plan.spent], color=_SPENT, marker="o")
    axes.axhline(plan.target, color=_MARK, linewidth=1.2, linestyle="--")
    axes.annotate(
        f"target {plan.target:.3g}",
        (0.02, plan.target),
        xycoords=("axes fraction", "data"),
        xytext=(0, -11),
        textcoords="offset points",
        color=_MARK,
    )
    axes.set_title(f"epsilon at delta {plan.contract.delta:g}")
    axes.set_xlabel("rounds")
    axes.set_ylim(bottom=0)


def _ratio_axes(axes: Axes, plan: Plan) -> None:
    known = [(one.cohort, one.signal_to_noise) for one in plan.cohorts if one.signal_to_noise is not None]
    if known:
        cohorts, ratios = zip(*known, strict=True)
        axes.semilogx(cohorts, ratios, color=_RATIO, marker="o")
        axes.set_xticks(cohorts, [str(cohort) for cohort in cohorts])
        axes.set_xticks([], minor=True)
    axes.axhline(plan.wanted, color=_MARK, linewidth=1.2, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_title(f"signal/noise of a round at epsilon {plan.target:.3g}")
    axes.set_xlabel("cohort")
