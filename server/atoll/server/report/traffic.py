"""A metric against the bytes that participants sent, compared with plain data parallelism."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from matplotlib.figure import Figure

from atoll.server.control import RunDetail
from atoll.server.control.curves import Panel
from atoll.server.report.figures import FULL_IN, MARKERS_UP_TO
from atoll.server.report.svg import LINE, drawing, stand_in, to_svg
from atoll.text.figures import in_bytes

INNER_STEPS = "inner_steps"
"""The training setting of silo jobs with the number of steps of each participant in a round."""
GRADIENT_BYTES = 4
"""Bytes per float32 element."""
_SENT, _PLAIN = stand_in(48), stand_in(49)
_COLOURS = {_SENT: "--server", _PLAIN: "--train"}


@dataclass(frozen=True)
class Traffic:
    """Total bytes that all participants had sent when each model was released, starting with the first model.

    Attributes:
        sent: in updates, including those that did not count.
        plain: by plain data parallelism with the same number of steps; empty if the job does not give that number.
    """

    sent: tuple[int, ...]
    plain: tuple[int, ...]


def traffic_of(detail: RunDetail, elements: int) -> Traffic:
    """The traffic of a run.

    In a ring all-reduce of float32 gradients among P participants, each sends 2 (P - 1) / P * 4 * elements bytes in a
    step (Patarasuk and Yuan 2009), so all of them send 2 (P - 1) * 4 * elements. P is the number that reported in the
    round.

    Args:
        detail: with the rounds' members.
        elements: size of the model.
    """
    steps = _inner_steps(detail.job_toml)
    sent, plain, sums = [], [], [0, 0]
    for item in detail.rounds:
        if item.kind != "train":
            continue
        sums[0] += sum(member.payload_bytes for member in item.members)
        if item.released:
            sums[1] += 2 * (item.reported - 1) * GRADIENT_BYTES * elements * (steps or 0)
            sent.append(sums[0])
            plain.append(sums[1])
    return Traffic(tuple(sent), tuple(plain) if steps and any(plain) else ())


def traffic_figure(panel: Panel, traffic: Traffic) -> str:
    """The most trustworthy curve of a metric over the bytes sent; empty if there is nothing to compare with."""
    points = [(version, value) for version, value in panel.best_curve.points if 0 < version <= len(traffic.plain)]
    if not points or not traffic.sent[0]:
        return ""
    values, marker = [value for _, value in points], "o" if len(points) <= MARKERS_UP_TO else None
    with drawing():
        figure = Figure(figsize=FULL_IN, layout="constrained")
        axes = figure.subplots()
        axes.tick_params(color=LINE)
        axes.set_xscale("log")
        for sums, colour, style, label in (
            (traffic.sent, _SENT, "-", "updates of this run"),
            (traffic.plain, _PLAIN, ":", "plain data parallel, as many steps"),
        ):
            x = [sums[version - 1] for version, _ in points]
            axes.plot(
                x, values, color=colour, linestyle=style, marker=marker, markersize=3.2, linewidth=1.8, label=label
            )
        axes.xaxis.set_major_formatter(lambda value, _: in_bytes(value))
        axes.set_title(f"{panel.metric} by bytes sent")
        axes.set_xlabel("sent by all participants together")
        figure.legend(loc="outside lower center", ncols=2, handlelength=1.6)
        return to_svg(figure, "traffic", f"{panel.metric} by bytes sent", _COLOURS)


def _inner_steps(job_toml: str) -> int:
    """The job's number of steps; 0 if it has none, or if the job cannot be read."""
    try:
        found = tomllib.loads(job_toml).get("training", {}).get(INNER_STEPS, 0)
    except tomllib.TOMLDecodeError:
        return 0
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0
