"""Participants that were invited in a run and never counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from atoll.server.control.summaries import MemberSummary, RoundSummary


@dataclass(frozen=True)
class NeverCounted:
    """A participant that was invited to ``rounds`` released attempts and counted in none.

    ``status`` and ``detail`` say why it did not count in the last of them.
    """

    participant: str
    organisation: str
    rounds: int
    status: str
    detail: str


def never_counted(rounds: Iterable[RoundSummary]) -> tuple[NeverCounted, ...]:
    """The participants that no released round counted, by id; rounds without members are skipped."""
    counted: set[str] = set()
    missed: dict[str, list[MemberSummary]] = {}
    for item in rounds:
        for member in item.members if item.released else ():
            if member.counted:
                counted.add(member.participant)
            else:
                missed.setdefault(member.participant, []).append(member)
    return tuple(
        NeverCounted(name, last[-1].organisation, len(last), last[-1].status, last[-1].detail)
        for name, last in sorted(missed.items())
        if name not in counted
    )
