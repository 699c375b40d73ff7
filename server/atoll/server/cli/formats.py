"""Runs and rounds as table rows and lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from atoll.server.cli.output import styled, when
from atoll.server.control import RoundSummary, RunDetail, RunSummary
from atoll.server.control.curves import Source, latest, shown, source_of
from atoll.server.control.names import names_of
from atoll.server.control.never_counted import never_counted, skipped_evaluations, sometimes_missing
from atoll.server.control.words import duration, fragment_words, kind_words, round_label
from atoll.text.figures import counted

RUN_COLUMNS = ("run", "name", "status", "rounds>", "submitted", "ended", "reason")
REASON_CHARS = 80
"""Maximum characters of a reason in a line; ``run show`` and ``--json`` have the whole reason."""
METRIC_CHARS = 24
"""Maximum characters of a metric's name, which participants choose."""
NAMED_IN_LINE, NAMED_AT_END = 3, 20
"""Maximum number of named participants that did not count: for each reason in a round's line, and after the last
round."""
MEMBER_COLUMNS = ("round", "participant", "organisation", "status", "examples>", "time>", "reason")


def run_row(run: RunSummary) -> tuple[object, ...]:
    """A row of ``run list``, with the beginning of the reason."""
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
    """The whole reason, if the table shows only its beginning, and where the run was extended."""
    if shortened(run.reason) != run.reason:
        yield f"{run.status}: {run.reason}"
    if run.extension:
        yield run.extension


def best_lines(detail: RunDetail) -> Iterator[str]:
    """The best model by the job's metric, if there is one."""
    best = detail.best
    if best is not None:
        yield f"best model: after {counted(best.round, 'round')}, {best.metric} {best.value:.6g} ({best.mode})"


def round_columns(metrics: Sequence[str]) -> tuple[str, ...]:
    """The columns of the table of rounds."""
    named = (f"{shortened(name, METRIC_CHARS)}>" for name in metrics)
    return ("round", "kind", "phase", "reports>", "time>", *named, "did not count")


def round_row(item: RoundSummary, metrics: Sequence[str]) -> tuple[object, ...]:
    """A row of the table of rounds."""
    return (
        round_label(item),
        kind_words(item),
        styled(item.phase),
        f"{item.reported}/{item.cohort}",
        "" if item.duration_s is None else duration(item.duration_s),
        *(metric(item, name) for name in metrics),
        absent(item) or Text(item.reason if item.phase == "abandoned" else ""),
    )


def member_rows(detail: RunDetail) -> Iterator[tuple[object, ...]]:
    """A row for each member of each round."""
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


def round_line(
    item: RoundSummary, rounds_total: int, *, named: bool = True, names: Mapping[str, str] | None = None
) -> str:
    """A round in one line, for logs and pipes; names members that did not count, unless the draw is secret.

    Progress counts train rounds, while the label is the round's number, which also counts evaluations.

    Args:
        item: the round.
        rounds_total: training rounds of the run.
        named: whether members are named.
        names: names of the run's participants, by id; None for names derived from this round.
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
    parts += [f"{shortened(name, METRIC_CHARS)} {metric(item, name)}{_of_model(item, name)}" for name in shown((item,))]
    absence = absent_named(item, names) if named else absent(item).plain
    parts += [text for text in (absence, item.reason if item.phase == "abandoned" else "") if text]
    return ", ".join(parts)


def metric(item: RoundSummary, name: str) -> str:
    """A metric of a round with four digits; empty if it was not measured."""
    value = latest(item, name)
    return "" if value is None else f"{value:.4f}"


def _of_model(item: RoundSummary, name: str) -> str:
    """The model that a metric in a training round's line measures, unless the round released it."""
    source = source_of(item, name) if item.kind == "train" else None
    return {Source.EVALUATION: " of the model before", Source.TRAINING: " in training"}.get(source or Source.SERVER, "")


def absent_named(item: RoundSummary, names: Mapping[str, str] | None = None) -> str:
    """The members that did not count and why, with a few names: ``1 failed (clinic-b: no data), 12 late``."""
    found: dict[str, list[str]] = {}
    names = names_of((item,)) if names is None else names
    for member in item.members:
        if not member.counted and not member.pending:
            reason = f": {shortened(member.detail)}" if member.detail else ""
            found.setdefault(member.status, []).append(f"{names[member.participant]}{reason}")
    by_number = sorted(found.items(), key=lambda one: -len(one[1]))
    return ", ".join(f"{len(who)} {styled(status).plain}{_named_in(item, status, who)}" for status, who in by_number)


def _named_in(item: RoundSummary, status: str, who: Sequence[str]) -> str:
    """A few names in brackets; no names of members that were stopped with their round, whose reason is shown once."""
    return "" if item.phase == "abandoned" and status == "stopped" else f" ({_few(who)})"


def closing_lines(rounds: Sequence[RoundSummary], *, secret: bool) -> Iterator[str]:
    """Lines about participants that did not count in some or all released rounds, and skipped evaluations.

    No participant is named if the draw is secret.
    """
    for item in skipped_evaluations(rounds):
        yield f"no evaluation after {counted(item.version, 'round')}: it was skipped because {item.reason}"
    if secret:
        if any(not member.counted and not member.pending for item in rounds for member in item.members):
            yield "some members did not count; the draw is secret, so only `run show --members` names them"
        return
    names = names_of(rounds)
    yield from _sometimes(rounds, names)
    found = never_counted(rounds)
    for one in found[:NAMED_AT_END]:
        why = _why(one.status, one.detail)
        name = _with_id(names[one.participant], one.participant)
        yield f"never counted: {name}, in {counted(one.rounds, 'round')}, lastly {why}"
    if len(found) > NAMED_AT_END:
        yield f"never counted: {len(found) - NAMED_AT_END} more; `atoll run show RUN --members` lists all"


def _sometimes(rounds: Sequence[RoundSummary], names: Mapping[str, str]) -> Iterator[str]:
    found = sometimes_missing(rounds)
    said = [
        f"{names[one.participant]} in {one.missed} of {one.invited} (lastly {_why(one.status, shortened(one.detail))})"
        for one in found
    ]
    if said:
        yield f"did not count in some rounds: {_few(said)}"


def _why(status: str, detail: str) -> str:
    return f"{styled(status).plain}{f': {detail}' if detail else ''}"


def _with_id(name: str, participant: str) -> str:
    """A participant's name with its id, which commands take: ``north (p3wajvfr7oa6f)``."""
    return name if participant in name else f"{name} ({participant})"


def _few(names: Sequence[str]) -> str:
    more = len(names) - NAMED_IN_LINE
    return "; ".join(names[:NAMED_IN_LINE]) + (f"; {more} more" if more > 0 else "")


def absent(item: RoundSummary) -> Text:
    """The number of members that did not count, by reason: ``2 timed out, 1 declined``."""
    counts = Counter(member.status for member in item.members if not member.counted and not member.pending)
    return Text(", ").join(Text(f"{count} ") + styled(status) for status, count in counts.most_common())
