"""Participants that were invited but did not count, in some or all rounds; evaluations without a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from atoll.server.control.runs import MemberSummary, RoundSummary

_OWN_DOING = frozenset({"declined", "failed", "silent", "timed_out", "rejected"})
"""Statuses of members that did not report: an abandoned attempt lacked these members."""


@dataclass(frozen=True)
class NeverCounted:
    """A participant that was missing from ``rounds`` attempts and counted in none.

    ``status`` and ``detail`` say why it did not count in the last of them.
    """

    participant: str
    organisation: str
    rounds: int
    status: str
    detail: str


@dataclass(frozen=True)
class SometimesMissing:
    """A participant that missed ``missed`` of the ``invited`` released rounds that it was invited to."""

    participant: str
    missed: int
    invited: int
    status: str
    detail: str


def never_counted(rounds: Iterable[RoundSummary]) -> tuple[NeverCounted, ...]:
    """The participants that no released round counted, by id; rounds without members are skipped.

    For a participant that was invited to train, only train rounds matter: no model has learned from a participant that
    counted only in evaluations. In abandoned attempts, only members that failed to report on their own account are
    considered.
    """
    given = tuple(rounds)
    trainees = {member.participant for item in given if item.kind == "train" for member in item.members}
    counted: set[str] = set()
    missed: dict[str, list[MemberSummary]] = {}
    for item in given:
        for member in item.members:
            if item.kind != "train" and member.participant in trainees:
                continue
            if item.released and member.counted:
                counted.add(member.participant)
            elif item.released or member.status in _OWN_DOING:
                missed.setdefault(member.participant, []).append(member)
    return tuple(
        NeverCounted(name, last[-1].organisation, len(last), last[-1].status, last[-1].detail)
        for name, last in sorted(missed.items())
        if name not in counted
    )


def sometimes_missing(rounds: Iterable[RoundSummary]) -> tuple[SometimesMissing, ...]:
    """Participants that counted in some released rounds and missed others on their own account, most misses first."""
    given = tuple(rounds)
    never = {one.participant for one in never_counted(given)}
    parts: dict[str, list[MemberSummary]] = {}
    for item in given:
        for member in item.members if item.released else ():
            parts.setdefault(member.participant, []).append(member)
    found = [
        _missing(name, members)
        for name, members in parts.items()
        if name not in never and any(one.counted for one in members)
    ]
    return tuple(sorted((one for one in found if one.missed), key=lambda one: (-one.missed, one.participant)))


def _missing(name: str, members: Sequence[MemberSummary]) -> SometimesMissing:
    missed = [one for one in members if one.status in _OWN_DOING]
    last = missed[-1] if missed else members[-1]
    return SometimesMissing(name, len(missed), len(members), last.status, last.detail)


def skipped_evaluations(rounds: Iterable[RoundSummary]) -> Iterator[RoundSummary]:
    """The last attempt at each evaluation that gave no result before the run continued or ended."""
    last = {item.round: item for item in rounds if item.kind == "evaluate"}
    return (item for item in last.values() if item.phase == "abandoned")
