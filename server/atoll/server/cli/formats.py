"""Runs and rounds as table rows and lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.text import Text

from atoll.server.cli.output import styled, when
from atoll.server.control import RoundSummary, RunDetail, RunSummary
from atoll.server.control.curves import latest
from atoll.server.control.never_counted import never_counted
from atoll.server.control.words import duration, fragment_words, kind_words, round_label
from atoll.server.jobs import JobFileError, parse_job
from atoll.server.jobs.refusals import has_secret_draw as secret_draw
from atoll.text.figures import counted

RUN_COLUMNS = ("run", "name", "status", "rounds>", "submitted", "ended", "reason")
REASON_CHARS = 80
"""Maximum characters of a reason in a line; ``run show`` and ``--json`` have all of it."""
NAMED_IN_LINE, NAMED_AT_END = 3, 20
"""Maximum number of participants that did not count, by name: for each reason in a round's line, and after the last
round."""
ROUND_COLUMNS = ("round", "kind", "phase", "reports>", "time>", "accuracy>", "loss>", "did not count")
MEMBER_COLUMNS = ("round", "participant", "organisation", "status", "examples>", "time>", "reason")


def run_row(run: RunSummary) -> tuple[object, ...]:
    """A line of ``run list``, with the beginning of the reason."""
    return (
        run.run,
        run.name,
        styled(run.status),
        f"{run.rounds_released}/{run.rounds_total}",
        when(run.created_at),
        when(run.finished_at),
        shortened(run.reason),
    )


def shortened(reason: str, most_chars: int = REASON_CHARS) -> str:
    """The beginning of a reason, cut at a clause or word to ``most_chars``, with an ellipsis if it is cut."""
    if len(reason) <= most_chars:
        return reason
    head = reason[:most_chars]
    clause = max(head.rfind(mark) for mark in (": ", "; ", " (", ", "))
    cut = clause if 2 * clause >= most_chars else head.rfind(" ")
    return f"{head[: cut if cut > 0 else most_chars - 1]}…"


def reason_lines(run: RunSummary) -> Iterator[str]:
    """The whole reason, if the table has only its beginning."""
    if shortened(run.reason) != run.reason:
        yield f"{run.status}: {run.reason}"


def round_row(item: RoundSummary) -> tuple[object, ...]:
    """A line of the table of rounds."""
    return (
        round_label(item),
        kind_words(item),
        styled(item.phase),
        f"{item.reported}/{item.cohort}",
        "" if item.duration_s is None else duration(item.duration_s),
        metric(item, "accuracy"),
        metric(item, "loss"),
        absent(item) or Text(item.reason if item.phase == "abandoned" else ""),
    )


def member_rows(detail: RunDetail) -> Iterator[tuple[object, ...]]:
    """A line for each member of each round."""
    for item in detail.rounds:
        for member in item.members:
            yield (
                round_label(item),
                member.participant,
                member.organisation,
                styled(member.status),
                f"{member.weight:,}" if member.counted else "",
                "" if member.report_s is None else duration(member.report_s),
                member.detail,
            )


def round_line(item: RoundSummary, rounds_total: int, *, named: bool = True) -> str:
    """A round in one line, for logs and pipes; with the names of members that did not count, unless the draw is secret.

    Progress counts train rounds; the label is the round's number, which counts evaluations too.
    """
    trains = item.kind == "train"
    label = f"round {round_label(item)}" if trains else "evaluation"
    parts = [
        f"[{item.version + trains}/{rounds_total}] {label} {item.phase}",
        f"{item.reported} of {item.cohort} reported",
    ]
    if item.fragment is not None:
        parts.insert(1, fragment_words(item))
    if item.duration_s is not None:
        parts.append(duration(item.duration_s))
    parts += [f"{name} {value}" for name in ("accuracy", "loss") if (value := metric(item, name))]
    absence = absent_named(item) if named else absent(item).plain
    parts += [text for text in (absence, item.reason if item.phase == "abandoned" else "") if text]
    return ", ".join(parts)


def metric(item: RoundSummary, name: str) -> str:
    """A metric of a round to four places; empty if it was not measured."""
    value = latest(item, name)
    return "" if value is None else f"{value:.4f}"


def absent_named(item: RoundSummary) -> str:
    """The members that did not count, and why, a few by name: ``1 failed (clinic-b: no data), 12 late``."""
    found: dict[str, list[str]] = {}
    for member in item.members:
        if not member.counted and not member.pending:
            reason = f": {shortened(member.detail)}" if member.detail else ""
            found.setdefault(member.status, []).append(f"{member.participant}{reason}")
    by_number = sorted(found.items(), key=lambda one: -len(one[1]))
    return ", ".join(f"{len(who)} {styled(status).plain} ({_few(who)})" for status, who in by_number)


def never_counted_lines(rounds: Sequence[RoundSummary], *, secret: bool) -> Iterator[str]:
    """The participants that were invited to released rounds and never counted; not by name if the draw is secret."""
    found = never_counted(rounds)
    if secret:
        if any(not member.counted and not member.pending for item in rounds for member in item.members):
            yield "some members did not count; the draw is secret, so only `run show --members` names them"
        return
    for one in found[:NAMED_AT_END]:
        why = f"{styled(one.status).plain}{f': {one.detail}' if one.detail else ''}"
        yield f"never counted: {one.participant} ({one.organisation}), in {counted(one.rounds, 'round')}, lastly {why}"
    if len(found) > NAMED_AT_END:
        yield f"never counted: {len(found) - NAMED_AT_END} more; `atoll run show RUN --members` lists all"


def has_secret_draw(detail: RunDetail) -> bool:
    """Whether a run's draws are secret; True if its job cannot be read here."""
    try:
        return secret_draw(parse_job(detail.job_toml))
    except JobFileError:
        return bool(detail.job_toml)


def _few(names: Sequence[str]) -> str:
    more = len(names) - NAMED_IN_LINE
    return "; ".join(names[:NAMED_IN_LINE]) + (f"; {more} more" if more > 0 else "")


def absent(item: RoundSummary) -> Text:
    """The number of members that did not count, by reason: ``2 timed out, 1 declined``."""
    counts = Counter(member.status for member in item.members if not member.counted and not member.pending)
    return Text(", ").join(Text(f"{count} ") + styled(status) for status, count in counts.most_common())
