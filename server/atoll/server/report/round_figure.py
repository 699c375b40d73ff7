"""The figure of one round: a bar for each member."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from atoll.server.control import MemberSummary, RoundSummary
from atoll.server.control.names import names_of
from atoll.server.control.timeline import STEPS, slowest_first, step_spans
from atoll.server.control.words import round_label
from atoll.server.report.svg import drawing, stand_in, to_svg

MAX_BARS = 30
WIDTH_IN = 10.8
_COLOURS = {step: stand_in(32 + index) for index, step in enumerate(STEPS)}
_PAGE_COLOURS = {colour: f"--t-{step}" for step, colour in _COLOURS.items()}


def slowest_round(rounds: Sequence[RoundSummary]) -> RoundSummary | None:
    """The released round with known members that took longest from invitation to close, or None."""
    timed = [item for item in rounds if item.released and any(step_spans(member) for member in item.members)]
    return max(timed, key=lambda item: item.duration_s or 0.0, default=None)


def timeline_figure(item: RoundSummary) -> str:
    """The steps of the slowest ``MAX_BARS`` members of a round, in seconds since the invitation."""
    shown, names = [member for member in slowest_first(item) if step_spans(member)][:MAX_BARS], names_of((item,))
    with drawing(axes__grid=True, axes__grid__axis="x"):
        figure = Figure(figsize=(WIDTH_IN, 1.15 + 0.19 * len(shown)), layout="constrained")
        axes = figure.subplots()
        for step, colour in _COLOURS.items():
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
        return to_svg(figure, "timeline", label, _PAGE_COLOURS)


def _of_step(shown: Sequence[MemberSummary], step: str) -> tuple[list[int], list[float], list[float]]:
    """Rows, starts and lengths of one step's bars."""
    found = [(row, one) for row, member in enumerate(shown) for one in step_spans(member) if one.step == step]
    return [row for row, _ in found], [one.start_s for _, one in found], [one.end_s - one.start_s for _, one in found]
