"""Updates participants' histories: hours online, report times, and how often they are drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from atoll.server.rounds import CohortDrawn, MemberStatus, RecordRound
from atoll.server.runs.stepping import Played
from atoll.server.stores import ParticipantHistory, history
from atoll.server.stores.history import HOURS, REPORTS_KEPT

_HOUR_S = 3600.0
_DAY_S = HOURS * _HOUR_S
Change = Callable[[ParticipantHistory], ParticipantHistory]


def selected(at: float) -> Change:
    """The participant was drawn."""
    return lambda known: replace(known, times_selected=known.times_selected + 1, last_selected_at=at, updated_at=at)


def reported(seconds: float, at: float) -> Change:
    """The participant reported ``seconds`` after its invitation."""

    def change(known: ParticipantHistory) -> ParticipantHistory:
        kept = (*known.report_s, max(0.0, seconds))[-REPORTS_KEPT:]
        return replace(known, report_s=kept, times_reported=known.times_reported + 1, updated_at=at)

    return change


def online(start: float, stop: float) -> Change:
    """The participant was connected from ``start`` to ``stop`` (epoch seconds)."""

    def change(known: ParticipantHistory) -> ParticipantHistory:
        hours = [have + more for have, more in zip(known.online_s, seconds_by_hour(start, stop), strict=True)]
        return replace(known, online_s=tuple(hours), updated_at=stop)

    return change


def seconds_by_hour(start: float, stop: float) -> tuple[float, ...]:
    """Seconds of [start, stop) in each hour of the day (UTC): 24 numbers. Whole days are spread evenly."""
    hours = [0.0] * HOURS
    if stop <= start:
        return tuple(hours)
    days, rest = divmod(stop - start, _DAY_S)
    for hour in range(HOURS):
        hours[hour] = days * _HOUR_S
    at, end = start, start + rest
    while at < end:
        edge = min(end, (at // _HOUR_S + 1) * _HOUR_S)
        hours[int(at % _DAY_S // _HOUR_S)] += edge - at
        at = edge
    return tuple(hours)


def record(connection: Connection, changes: Mapping[str, Iterable[Change]], at: float) -> None:
    """Apply changes to the stored histories of these participants."""
    known = history.of(connection, changes.keys())
    updated = []
    for participant, steps in changes.items():
        current = known.get(participant) or ParticipantHistory(participant, at)
        for change in steps:
            current = change(current)
        updated.append(current)
    history.put(connection, updated)


def record_online(connection: Connection, spells: Mapping[str, tuple[float, float]]) -> None:
    """Record the interval, in epoch seconds, for which each participant was connected."""
    if spells:
        latest = max(stop for _, stop in spells.values())
        record(connection, {who: [online(start, stop)] for who, (start, stop) in spells.items()}, latest)


def record_learned(connection: Connection, played: Iterable[Played], *, refused_count: bool = False) -> None:
    """Record who was drawn and, for ended rounds, who reported and how fast.

    With ``refused_count`` a refused report counts too, so that later draws do not depend on the content of an update.
    """
    reports = {MemberStatus.REPORTED, MemberStatus.REJECTED} if refused_count else {MemberStatus.REPORTED}
    changes: defaultdict[str, list[Change]] = defaultdict(list)
    at = 0.0
    for one in played:
        at = one.at
        if isinstance(one.event, CohortDrawn) and one.changed:
            for participant, _ in one.event.members:
                changes[participant].append(selected(at))
        for effect in one.effects:
            if isinstance(effect, RecordRound):
                for member in effect.round.roster:
                    if member.status in reports:
                        seconds = member.at - effect.round.opened_at
                        changes[member.participant].append(reported(seconds, effect.round.ended_at))
    if changes:
        record(connection, changes, at)
