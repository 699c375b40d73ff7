"""Draw timelines of the schedules and a picture of the mesh, as SVG.

``python -m atoll.datacenter.parallel.pipeline.picture docs/datacenter`` draws the pictures of the documentation. The
timelines are PyTorch's orders, simulated with a forward pass as long as each half of a backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args
from xml.sax.saxutils import escape

from atoll.datacenter.job.parallel import PipelineSchedule
from atoll.datacenter.parallel.pipeline.kinds import KINDS
from atoll.datacenter.parallel.pipeline.order import Pass, Played, Span, order_of, play
from atoll.settings.reference import path_argument

RANKS = 4
MICRO_BATCHES = 8
_UNIT = 18
_ROW = 26
_LEFT = 54
_TOP = 30
_COLOURS: dict[Pass, tuple[str, str]] = {
    "F": ("#9cc4f0", "#c9e0f8"),
    "B": ("#8fd19e", "#c4e8cb"),
    "I": ("#f2c572", "#f9e3b8"),
    "W": ("#d3a6d9", "#ead3ed"),
}
"""Fill colours of a pass: of the rank's first stage, and of its later stages."""
_NAMES: dict[Pass, str] = {"F": "forward", "B": "backward", "I": "backward to input", "W": "backward to weights"}
_STYLE = (
    "text{font:10px sans-serif;fill:#222;text-anchor:middle}.label{fill:#888;text-anchor:start;font-size:12px}"
    "rect{stroke:#fff;stroke-width:.5}"
)


def pictures() -> Iterator[tuple[str, str]]:
    """Yield name and text of each file."""
    for schedule in get_args(PipelineSchedule):
        yield f"pipeline-{schedule.replace('_', '-')}.svg", timeline(schedule)
    yield "mesh.svg", mesh()


def timeline(schedule: PipelineSchedule, ranks: int = RANKS, micro_batches: int = MICRO_BATCHES) -> str:
    """Draw the actions of each rank over time, one row per rank; a second stage has lighter shades."""
    per_rank = 2 if KINDS[schedule].several_stages else 1
    unit = 1 / per_rank
    played = play(order_of(schedule, ranks, per_rank, micro_batches), ranks * per_rank, unit, unit, unit)
    title = f"{schedule}: {ranks} ranks x {per_rank}, {micro_batches} micro-batches; idle {played.idle_share:.1%}"
    body = [f'<text class="label" x="4" y="18">{escape(title)}</text>']
    for rank, spans in enumerate(played.spans):
        top = _TOP + rank * _ROW
        body.append(f'<text class="label" x="4" y="{top + 15}">rank {rank}</text>')
        body += [_box(span, top, ranks) for span in spans]
    body += _legend(played, _TOP + ranks * _ROW + 16)
    return _svg(_LEFT + int(played.seconds * _UNIT) + 8, _TOP + ranks * _ROW + 28, body)


def _box(span: Span, top: int, ranks: int) -> str:
    left, width = _LEFT + span.begin * _UNIT, (span.end - span.begin) * _UNIT
    colour = _COLOURS[span.action.kind][span.action.stage >= ranks]
    number = f'<text x="{left + width / 2:g}" y="{top + 15}">{span.action.micro_batch}</text>'
    return f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{_ROW - 4}" fill="{colour}"/>{number}'


def _legend(played: Played, top: int) -> Iterator[str]:
    left = _LEFT
    used = {span.action.kind for spans in played.spans for span in spans}
    for (kind, colours), name in zip(_COLOURS.items(), _NAMES.values(), strict=True):
        if kind in used:
            yield f'<rect x="{left}" y="{top - 9}" width="12" height="10" fill="{colours[0]}"/>'
            yield f'<text class="label" x="{left + 16}" y="{top}">{name}</text>'
            left += 26 + 7 * len(name)


def mesh() -> str:
    """Draw eight ranks as ``pp`` 2 x ``dp_shard`` 2 x ``tp`` 2, and which of them communicate along which axis."""
    body = ['<text class="label" x="4" y="18">pp 2 x dp_shard 2 x tp 2: rank = 4 pp + 2 dp_shard + tp</text>']
    for stage in range(2):
        top = 60 + 150 * stage
        body.append(f'<text class="label" x="4" y="{top + 50}">stage {stage}</text>')
        for shard in range(2):
            left = 80 + 250 * shard
            body.append(
                f'<rect x="{left}" y="{top}" width="200" height="90" rx="8" fill="none" style="stroke:#d3a6d9;'
                f'stroke-width:2"/><text class="label" x="{left + 8}" y="{top + 84}">tp: cuts each matrix</text>'
            )
            body += [_rank(4 * stage + 2 * shard + part, left + 20 + 90 * part, top + 14) for part in range(2)]
        body.append(_line(280, top + 45, 330, top + 45, "#5b9bd5"))
    body += [_line(180 + 250 * shard, 150, 180 + 250 * shard, 210, "#5aa469") for shard in range(2)]
    body.append('<text class="label" x="190" y="184">pp: activations down, gradients up</text>')
    body.append('<text class="label" x="238" y="50">dp_shard: other sequences</text>')
    return _svg(560, 320, body)


def _rank(number: int, left: int, top: int) -> str:
    return (
        f'<rect x="{left}" y="{top}" width="70" height="50" rx="5" fill="#c9e0f8"/>'
        f'<text x="{left + 35}" y="{top + 29}">rank {number}</text>'
    )


def _line(x1: int, y1: int, x2: int, y2: int, colour: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="3"/>'


def _svg(width: int, height: int, body: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *body, "</svg>", ""])


if __name__ == "__main__":
    folder = path_argument(
        "atoll.datacenter.parallel.pipeline.picture",
        "FOLDER",
        "where the pictures go; in this repository docs/datacenter",
    )
    for name, text in pictures():
        (folder / name).write_text(text, encoding="utf-8")
