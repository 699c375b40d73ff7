"""The lifecycle of a run: which round comes next, when the run pauses, how it ends."""

from dataclasses import replace

from atoll.server.rounds.effects import DrawCohort, DropSpools, Effect, Finish, RecordMember, RecordRound, Stop
from atoll.server.rounds.policy import LateMode, RunPolicy
from atoll.server.rounds.roster import Member, MemberStatus
from atoll.server.rounds.run_state import Carried, PastRound, Phase, RoundKind, RoundState, RunState, RunStatus
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.updates import RoundKey

# Members of a closed round that may still be training and may therefore send a late report.
MAY_BE_LATE = frozenset({MemberStatus.TIMED_OUT, MemberStatus.OVER_SELECTED, MemberStatus.SILENT, MemberStatus.STOPPED})


def carries(state: RunState, kind: RoundKind) -> bool:
    """Whether late reports of a round of this kind are carried to a later round."""
    return kind is RoundKind.TRAIN and state.policy.straggler.late.mode is LateMode.CARRY


def next_kind(state: RunState) -> RoundKind | None:
    """The kind of the round after the last released one; None when the run is complete."""
    policy, version, last = state.policy, state.version, state.round
    complete = version >= policy.rounds or state.stopping != ""
    due = policy.evaluate_every > 0 and version > 0 and version % policy.evaluate_every == 0
    begun = last is not None and last.version == version  # a round with this model; it is evaluated before it trains
    if not begun and (due or (complete and policy.final_evaluation)):
        return RoundKind.EVALUATE
    return None if complete else RoundKind.TRAIN


def trained_before(evaluate_every: int, number: int) -> int:
    """The model version that train round ``number`` starts from: how many train rounds were released before it.

    After every ``evaluate_every`` train rounds one number belongs to an evaluation, whether it was released or skipped.
    """
    return number - number // (evaluate_every + 1) if evaluate_every else number


def planned_round(policy: RunPolicy, rnd: RoundState) -> int:
    """The round's number in an uninterrupted run whose job had listed all rounds from the start.

    It seeds draws and tasks, so that an extended run draws and trains like a run that was submitted with all its
    rounds. In a run that was never extended or cancelled, it is the round's own number. A final evaluation before an
    extension and a cancelled round take numbers that the uninterrupted run gives to later rounds.
    """
    every, version = policy.evaluate_every, rnd.version
    evaluated = version // every if every else 0
    itself = rnd.kind is RoundKind.EVALUATE and every > 0 and version > 0 and version % every == 0
    return version + evaluated - itself


def attempts_left(state: RunState, key: RoundKey) -> bool:
    """Whether the round may be tried again after this attempt."""
    return key.attempt + 1 < state.policy.straggler.max_attempts


def advance(state: RunState, now: float) -> Step:
    """After a finished round, begin the next one, enter a requested pause, or end the run."""
    kind = next_kind(state)
    if kind is None:
        return end_run(state, RunStatus.FINISHED, state.stopping or "all rounds are done", now)
    if state.pause_requested:
        return pause(state)
    number = 0 if state.round is None else state.round.key.round + 1
    return begin(state, RoundKey(number, 0), kind, now)


def retry(state: RunState, now: float) -> Step:
    """Begin the next attempt at the abandoned round."""
    rnd = live(state)
    return begin(state, RoundKey(rnd.key.round, rnd.key.attempt + 1), rnd.kind, now)


def begin(state: RunState, key: RoundKey, kind: RoundKind, now: float) -> Step:
    """Begin an attempt and ask for its cohort; drop carried updates that are now too stale."""
    limit = state.policy.straggler.late.max_staleness
    fresh = tuple(c for c in state.carried if state.version - c.version <= limit)
    stale = [c for c in state.carried if state.version - c.version > limit]
    dropped = discard(state, stale, f"carried, but no round could take it within {limit} released models", now)
    rnd = RoundState(key, kind, state.version, Phase.CREATED, created_at=now)
    begun = replace(dropped.state, round=rnd, carried=fresh, status=RunStatus.RUNNING)
    return Step(begun, (*dropped.effects, *drop_spools(state, fresh), draw(begun)))


def draw(state: RunState) -> DrawCohort:
    """Request the cohort of the live round, reduced by the number of carried updates that already count."""
    rnd, straggler = live(state), state.policy.straggler
    train = rnd.kind is RoundKind.TRAIN
    excluded = tuple(sorted({c.update.participant for c in state.carried})) if train else ()
    needed = max(0, straggler.quorum - len(excluded))
    planned = planned_round(state.policy, rnd)
    return DrawCohort(rnd.key, rnd.kind, straggler.invited(len(excluded)), needed, excluded, planned)


def pause(state: RunState, reason: str = "") -> Step:
    """Pause the run; ``reason`` says why, if no operator asked for it."""
    paused = replace(state, status=RunStatus.PAUSED, pause_requested=False, reason=reason)
    return Step(paused, drop_unneeded(paused))


def drop_unneeded(paused: RunState) -> tuple[DropSpools, ...]:
    """Uploads that a paused run may delete: none while its sum awaits a charge, since a restart computes it again."""
    rnd = paused.round
    return () if rnd is not None and rnd.phase is Phase.AGGREGATED else drop_spools(paused, paused.carried)


def archive(state: RunState, rnd: RoundState) -> Step:
    """Record an ended round and keep it for its late reports; forget rounds whose late reports are too stale."""
    late = state.policy.straggler.late
    if late.mode is LateMode.CARRY:
        oldest = rnd.version - late.max_staleness
        kept = tuple(p for p in state.past if p.version >= oldest and p.kind is RoundKind.TRAIN)
    else:
        kept = ()
    past = (*kept, PastRound(rnd.key, rnd.kind, rnd.version, rnd.roster))
    return Step(replace(state, round=rnd, past=past), (RecordRound(rnd),))


def discard(state: RunState, updates: list[Carried], why: str, now: float) -> Step:
    """Record that no sum will take these carried updates; the caller removes them from the state."""
    effects: list[Effect] = []
    for c in updates:
        gone = replace(member_of(state, c), detail=why, update=None, at=now)
        state = amend(state, c.update.key, gone)
        effects.append(RecordMember(c.update.key, gone))
    return Step(state, tuple(effects))


def member_of(state: RunState, carried: Carried) -> Member:
    """The roster entry of a carried update's participant in the round that the update was made for."""
    ref = carried.update
    for past in state.past:
        if past.key == ref.key:
            found = past.roster.get(ref.participant)
            if found is not None:
                return found
    return Member(ref.participant, ref.weight, MemberStatus.LATE, reported_weight=ref.weight, update=ref)


def amend(state: RunState, key: RoundKey, member: Member) -> RunState:
    """Replace the member in round `key`, wherever the state holds that round."""
    rnd = state.round
    if rnd is not None and rnd.key == key:
        state = replace(state, round=replace(rnd, roster=rnd.roster.put(member)))
    if not any(p.key == key for p in state.past):
        return state
    past = tuple(replace(p, roster=p.roster.put(member)) if p.key == key else p for p in state.past)
    return replace(state, past=past)


def drop_spools(state: RunState, carried: tuple[Carried, ...]) -> tuple[DropSpools, ...]:
    """Delete uploads that no later round can need; keep updates that are carried or may still be carried.

    Uploads of a round that has only been created are kept: the round continues, and its uploads are still to come.
    """
    through = None if state.round is None else state.round.key
    if state.round is not None and state.round.phase is Phase.CREATED:
        through = _before(state.round.key, state.policy)
    if through is None:
        return ()
    limit = state.policy.straggler.late.max_staleness
    waiting = {(c.update.key, c.update.participant) for c in carried}
    coming = {
        (past.key, m.participant)
        for past in state.past
        if carries(state, past.kind) and state.version - past.version <= limit
        for m in past.roster
        if m.status in MAY_BE_LATE and m.update is None
    }
    return (DropSpools(through, tuple(sorted(waiting | coming))),)


def _before(key: RoundKey, policy: RunPolicy) -> RoundKey | None:
    """The largest possible key of an earlier attempt; None for the first attempt of the first round."""
    if key.attempt:
        return RoundKey(key.round, key.attempt - 1)
    return RoundKey(key.round - 1, policy.straggler.max_attempts - 1) if key.round else None


def end_run(state: RunState, status: RunStatus, reason: str, now: float) -> Step:
    """End the run: drop carried updates and stop members that are still training."""
    why = f"carried, but the run ended ({status}) before a round could take it"
    dropped = discard(state, list(state.carried), why, now)
    ended = replace(
        dropped.state, status=status, reason=reason, carried=(), pause_requested=False, cancel_requested=None
    )
    effects: list[Effect] = [*dropped.effects]
    for past in state.past:
        working = past.roster.with_status(*MAY_BE_LATE) if carries(state, past.kind) else ()
        if working:
            public_reason = "" if status is RunStatus.FAILED else f": {reason}"  # a failure's reason may name members
            effects.append(Stop(past.key, working, f"the run has ended ({status}){public_reason}"))
    if ended.round is not None:
        effects.append(DropSpools(ended.round.key, ()))
    return Step(ended, (*effects, Finish(status, reason)))
