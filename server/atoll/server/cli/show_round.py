"""``atoll run show --round``: one round's phases and members as bars of text."""

from __future__ import annotations

import dataclasses

import click
from rich.text import Text

from atoll.operator import Run
from atoll.operator.errors import BadInputError
from atoll.server.cli.output import print_json, print_table, styled
from atoll.server.control import MemberSummary, RoundSummary
from atoll.server.control.timeline import StepSpan, slowest_first, step_spans, story, why
from atoll.server.control.words import duration, fragment_words, parse_round_label, round_label
from atoll.text.figures import in_bytes

BAR_COLUMNS = 40
COLUMNS = ("participant", "organisation", "status", "0 s to the end", "time>", "size>", "why it did not count")
_MARKS = {
    "wait": ("·", "dim"),
    "download": ("▼", "blue"),
    "evaluate": ("▒", "magenta"),
    "fit": ("█", "cyan"),
    "work": ("▓", "cyan"),
    "upload": ("▲", "green"),
    "fold": ("+", "yellow"),
}
"""Each step's letter and colour; letters distinguish the steps without colours."""


def show_round(run: Run, label: str, *, json_output: bool) -> None:
    """Print the timeline of every attempt at a round, or of one.

    Raises:
        BadInputError: for a label that names no round of the run.
    """
    try:
        number, attempt = parse_round_label(label)
    except ValueError as error:
        raise BadInputError(str(error)) from None
    detail = run.detail(members=True, only=number)
    found = tuple(item for item in detail.rounds if attempt in (None, item.attempt))
    if not found:
        raise BadInputError(f"run {run.id} has no round {label}", "`atoll run show RUN` lists its rounds")
    if json_output:
        print_json(dataclasses.replace(detail, rounds=found))
        return
    for item in found:
        _show(item)


def _show(item: RoundSummary) -> None:
    what = ", ".join(part for part in (item.kind, fragment_words(item), item.phase) if part)
    click.echo(f"round {round_label(item)}, {what}: {item.reported} of {item.cohort} reported")
    for sentence in story(item):
        click.echo(f"  {sentence}")
    bars = {member.participant: step_spans(member) for member in item.members}
    longest_s = max((one.end_s for found in bars.values() for one in found), default=0.0)
    click.echo()
    print_table(COLUMNS, (_row(one, bars[one.participant], longest_s) for one in slowest_first(item)), "no members")
    shown = {one.step for found in bars.values() for one in found}
    legend = "  ".join(f"{mark} {step}" for step, (mark, _) in _MARKS.items() if step in shown)
    if legend:
        click.echo(f"\n{legend}; the bars are {duration(longest_s)} long, from the invitation on\n")


def _row(member: MemberSummary, found: tuple[StepSpan, ...], longest_s: float) -> tuple[object, ...]:
    return (
        member.participant,
        member.organisation,
        styled(member.status),
        bar(found, longest_s),
        "" if member.report_s is None else duration(member.report_s),
        in_bytes(member.payload_bytes) if member.payload_bytes else "",
        why(member),
    )


def bar(found: tuple[StepSpan, ...], longest_s: float) -> Text:
    """Segments as characters, with ``BAR_COLUMNS`` for ``longest_s`` seconds; each segment's end is rounded."""
    text, at = Text(), 0
    for one in found:
        until = round(one.end_s / longest_s * BAR_COLUMNS) if longest_s > 0 else 0
        mark, style = _MARKS[one.step]
        text.append(mark * (until - at), style=style)
        at = max(at, until)
    return text
