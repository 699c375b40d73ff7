"""Contents of a round's page: how long each phase took, which members reported, and why others did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from atoll.console.paging import Page, paged
from atoll.operator import MemberSummary, RoundSummary
from atoll.server.control.names import names_of
from atoll.server.control.timeline import slowest_first, step_spans, story

MEMBERS_PER_PAGE = 100
BAR_WIDTH = 100.0


@dataclass(frozen=True)
class Bar:
    """A step of a member's work as a part of ``BAR_WIDTH``."""

    step: str
    x: float
    width: float


@dataclass(frozen=True)
class MemberRow:
    """One member of a round, with the steps of its work."""

    member: MemberSummary
    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class RoundView:
    """An attempt at a round as its page shows it.

    Attributes:
        sentences: where its time went.
        statuses: number of members by status, the most frequent first.
        status: the status of the members that are shown; empty: of every status.
        members: a page of them.
        longest_s: seconds that the full length of a bar stands for.
        steps: the steps that the bars have.
    """

    item: RoundSummary
    sentences: tuple[str, ...]
    statuses: tuple[tuple[str, int], ...]
    status: str
    members: Page[MemberRow]
    longest_s: float
    steps: tuple[str, ...]


def round_view(item: RoundSummary, status: str, number: int) -> RoundView:
    """A round's page, with page ``number`` of its members of this status."""
    chosen = tuple(one for one in slowest_first(item) if status in ("", one.status))
    page = paged(chosen, number, MEMBERS_PER_PAGE)
    names = names_of((item,))
    longest_s = max((part.end_s for one in chosen for part in step_spans(one)), default=0.0)
    rows = tuple(_row(one, names, longest_s) for one in page.items)
    steps = dict.fromkeys(bar.step for row in rows for bar in row.bars)
    counts = Counter(one.status for one in item.members).most_common()
    shown = Page(rows, page.number, page.count, page.total, page.start)
    return RoundView(item, tuple(story(item)), tuple(counts), status, shown, longest_s, tuple(steps))


def _row(member: MemberSummary, names: Mapping[str, str], longest_s: float) -> MemberRow:
    return MemberRow(member, names.get(member.participant, member.participant), tuple(_bars(member, longest_s)))


def _bars(member: MemberSummary, longest_s: float) -> Iterator[Bar]:
    for part in step_spans(member) if longest_s > 0 else ():
        scale = BAR_WIDTH / longest_s
        yield Bar(part.step, round(part.start_s * scale, 1), round((part.end_s - part.start_s) * scale, 1))
