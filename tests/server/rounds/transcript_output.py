"""Lines of a golden transcript: an event's changes of a run, and its effects."""

from collections.abc import Iterable, Iterator
from functools import singledispatch

from atoll.server.rounds import (
    Aggregate,
    Carried,
    ChargeAndStore,
    DrawCohort,
    DropSpools,
    Effect,
    Finish,
    Fold,
    Invite,
    PrepareRound,
    Publish,
    Receipt,
    RecordMember,
    RecordRound,
    Roster,
    RunState,
    StartDeadline,
    StartRetry,
    Stop,
    UpdateRef,
    situation,
)


def changes(before: RunState, after: RunState) -> Iterator[str]:
    """The run's situation, if it changed, and every fact that transcripts show."""
    if after is before:
        yield "(no change)"
        return
    there = situation(after)
    rnd = after.round
    if (there, rnd and rnd.key) != (situation(before), before.round and before.round.key):
        yield f"== {there}" + ("" if rnd is None else f", {rnd.kind} round {rnd.key}")
    if rnd is not None:
        yield from _members(before, after, rnd.roster)
        if before.round is None or rnd.carried != before.round.carried:
            yield from (f"takes {_carried(c)}" for c in rnd.carried)
    if after.carried != before.carried:
        yield "waiting: " + (", ".join(_carried(c) for c in after.carried) or "none")
    if (after.version, after.model) != (before.version, before.model):
        yield f"model {after.model}, version {after.version}"
    if after.pause_requested != before.pause_requested:
        yield f"pause requested: {'yes' if after.pause_requested else 'no'}"
    if after.cancel_requested is not None and after.cancel_requested != before.cancel_requested:
        yield f"cancel requested: {after.cancel_requested}"
    yield from _judged(before, after)
    if after.reason != before.reason:
        yield f"reason: {after.reason or 'none'}"


def _judged(before: RunState, after: RunState) -> Iterator[str]:
    """The best model, and the decision to stop."""
    if after.best is not None and after.best != before.best:
        yield f"best: model {after.best.version} with {after.best.value:g}, {after.best.since} measured since"
    if after.stopping != before.stopping:
        yield f"stopping: {after.stopping}"


def _members(before: RunState, after: RunState, roster: Roster) -> Iterator[str]:
    """Changed members, those with the same new status and detail together."""
    same = before.round is not None and after.round is not None and before.round.key == after.round.key
    old = before.round.roster if same and before.round is not None else Roster()
    groups: dict[str, list[str]] = {}
    for member in roster:
        was = old.get(member.participant)
        if was is None or (was.status, was.detail) != (member.status, member.detail):
            words = f"{member.status}" + (f" ({member.detail})" if member.detail else "")
            groups.setdefault(words, []).append(member.participant)
    for words, participants in groups.items():
        yield f"{' '.join(participants)}: {words}"


def _carried(carried: Carried) -> str:
    stale = f", staleness {carried.staleness}, factor {carried.factor:g}" if carried.staleness else ""
    return f"{_update(carried.update)}{stale}"


def _update(update: UpdateRef) -> str:
    return f"{update.participant} of round {update.key}"


def _names(participants: Iterable[str]) -> str:
    return " ".join(participants) or "none"


@singledispatch
def _words(effect: object) -> str:
    raise TypeError(f"no line for {effect!r}; add one here")


def effect_line(effect: Effect) -> str:
    """The effect's class name, as in the source, and its fields."""
    return f"{type(effect).__name__} {_words(effect)}"


@_words.register
def _(effect: DrawCohort) -> str:
    without = f", without {_names(effect.excluded)}" if effect.excluded else ""
    return f"{effect.key}: {effect.invited} invited, {effect.needed} needed{without}"


@_words.register
def _(effect: PrepareRound) -> str:
    members = _names(f"{name}:{weight}" for name, weight in effect.members)
    return f"{effect.key}: {members}; total weight at most {effect.total_weight}"


@_words.register
def _(effect: Invite) -> str:
    return f"{effect.key}: {_names(effect.participants)}"


@_words.register
def _(effect: Stop) -> str:
    return f"{effect.key}: {_names(effect.participants)} ({effect.reason})"


@_words.register
def _(effect: StartDeadline) -> str:
    return f"{effect.key}: in {effect.remaining_s:g} s"


@_words.register
def _(effect: Fold) -> str:
    return f"{effect.key}: {_update(effect.update)}, weight {effect.weight}"


@_words.register
def _(effect: Aggregate) -> str:
    terms = " + ".join(f"{term.participant}:{term.weight}" for term in effect.contributions) or "nothing"
    return f"{effect.key}: {terms}, total weight {effect.total_weight}"


@_words.register
def _(effect: ChargeAndStore | Publish) -> str:
    return f"{effect.key}: {effect.digest}"


@_words.register
def _(effect: StartRetry) -> str:
    return f"{effect.key}: in {effect.delay_s:g} s"


@_words.register
def _(effect: Receipt) -> str:
    return f"{effect.key}: {effect.participant} {effect.verdict}" + (f" ({effect.detail})" if effect.detail else "")


@_words.register
def _(effect: RecordRound) -> str:
    rnd = effect.round
    return f"{rnd.key}: {rnd.phase}, {rnd.counted} counted"


@_words.register
def _(effect: RecordMember) -> str:
    return f"{effect.key}: {effect.member.participant} {effect.member.status} ({effect.member.detail})"


@_words.register
def _(effect: DropSpools) -> str:
    kept = [f"{participant} of round {key}" for key, participant in effect.keep]
    return f"through {effect.through}" + (f", keep {', '.join(kept)}" if kept else "")


@_words.register
def _(effect: Finish) -> str:
    return f"{effect.status}: {effect.reason}"
