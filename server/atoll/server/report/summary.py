"""The report's figures and tables: headline figures, attendance, reasons for not counting, rounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from atoll.server.control import MemberSummary, RoundSummary, RunDetail
from atoll.server.control.curves import Panel
from atoll.server.control.names import names_of
from atoll.server.control.tile import Tile
from atoll.server.control.words import duration, round_label
from atoll.server.report.figures import Grid
from atoll.text.figures import counted

MAX_ROWS = 60
MAX_COLUMNS = 300
MAX_NAMED = 6


@dataclass(frozen=True)
class Absence:
    """A reason why participants did not count."""

    status: str
    detail: str
    times: int
    participants: str
    rounds: str


@dataclass(frozen=True)
class Attendance:
    """One participant over the whole run; ``report_s`` is the median of its report times."""

    participant: str
    organisation: str
    invited: int
    reported: int
    report_s: float | None
    weight: int


def tiles(detail: RunDetail, panels: Sequence[Panel]) -> Iterator[Tile]:
    """The headline figures."""
    for panel in panels[:2]:
        yield Tile(f"final {panel.metric}", f"{panel.final:.4g}", panel.best_curve.source.label)
    if detail.best is not None:
        best = detail.best
        yield Tile(f"best {best.metric}", f"{best.value:.4g}", f"after {counted(best.round, 'round')}")
    yield Tile(
        "rounds released",
        f"{detail.run.rounds_released}",
        detail.run.planned,
    )
    times = [item.duration_s for item in detail.rounds if item.released and item.duration_s is not None]
    if any(times):
        yield Tile("median round", duration(median(times)), f"open to close; slowest {duration(max(times))}")
    run = detail.run
    if run.created_at is not None and run.finished_at is not None and run.finished_at > run.created_at:
        yield Tile("whole run", duration(run.finished_at - run.created_at))
    members = [member for item in detail.rounds for member in item.members]
    if members:
        reported = sum(member.counted for member in members)
        participants = len({member.participant for member in members})
        yield Tile("reports", f"{reported:,}", f"of {len(members):,} asked, {counted(participants, 'participant')}")


def attendance(rounds: Sequence[RoundSummary]) -> tuple[Attendance, ...]:
    """Each participant's part in the run, by organisation and id."""
    parts: dict[str, list[MemberSummary]] = defaultdict(list)
    for item in rounds:
        for member in item.members:
            parts[member.participant].append(member)
    found = [_attended(participant, members) for participant, members in parts.items()]
    return tuple(sorted(found, key=lambda item: (item.organisation, item.participant)))


def absences(rounds: Sequence[RoundSummary]) -> tuple[Absence, ...]:
    """The reasons why participants did not count, the most frequent first."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    names = names_of(rounds)
    for item in rounds:
        for member in item.members:
            if not member.counted and not member.pending:
                found[member.status, member.detail].append((item.round + 1, names[member.participant]))
    made = [
        Absence(
            status,
            text,
            len(cases),
            _named([name for name, _ in Counter(participant for _, participant in cases).most_common()]),
            _named([str(number) for number in sorted({number for number, _ in cases})]),
        )
        for (status, text), cases in found.items()
    ]
    return tuple(sorted(made, key=lambda item: (-item.times, item.status, item.detail)))


def presence(rounds: Sequence[RoundSummary]) -> Grid:
    """The grid of reports, cut to the ``MAX_ROWS`` rows with most misses and the last ``MAX_COLUMNS`` attempts."""
    shown = [item for item in rounds if item.members][-MAX_COLUMNS:]
    rows = attendance(shown)
    if len(rows) > MAX_ROWS:
        missed = sorted(rows, key=lambda row: (row.reported - row.invited, row.participant))[:MAX_ROWS]
        rows = tuple(sorted(missed, key=lambda row: (row.organisation, row.participant)))
    statuses = [{member.participant: member.status for member in item.members} for item in shown]
    cells = tuple(tuple(status.get(row.participant, "") for status in statuses) for row in rows)
    names = names_of(rounds)
    return Grid(tuple(names[row.participant] for row in rows), tuple(map(round_label, shown)), cells)


def _attended(participant: str, members: Sequence[MemberSummary]) -> Attendance:
    times = [member.report_s for member in members if member.counted and member.report_s is not None]
    return Attendance(
        participant=participant,
        organisation=members[-1].organisation,
        invited=len(members),
        reported=sum(member.counted for member in members),
        report_s=median(times) if times else None,
        weight=max(member.weight for member in members),
    )


def _named(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
