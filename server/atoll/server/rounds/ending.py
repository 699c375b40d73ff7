"""How a round ends: it closes with enough contributions, or it is abandoned."""

from collections import Counter
from dataclasses import replace

from atoll.server.rounds.course import advance, attempts_left, carries, drop_spools, end_run, pause, settle
from atoll.server.rounds.effects import Aggregate, StartRetry, Stop
from atoll.server.rounds.policy import Patience
from atoll.server.rounds.roster import MAY_REPORT, OUTSTANDING, Member, MemberStatus, Roster
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.values import Carried, Phase, RoundKind, RoundState, RunState, RunStatus
from atoll.server.rounds.weights import contributions, total_weight
from atoll.wire.figures import counted

_LEFT = frozenset({MemberStatus.DECLINED, MemberStatus.FAILED, MemberStatus.REJECTED, MemberStatus.SILENT})


def judge(state: RunState, now: float) -> Step:
    """After any change to a sampled or open round: leave it, close it, or abandon it.

    A silent member is gone for closing (nobody waits for it once the quorum is there) but not for abandoning (it may
    come back before the deadline).
    """
    rnd, straggler = live(state), state.policy.straggler
    roster, counted = rnd.roster, present(state)
    possible = counted + roster.outstanding + roster.silent
    if possible < straggler.quorum:
        return abandon(state, f"{possible} of {straggler.quorum} needed {_able(rnd)}", MemberStatus.STOPPED, now)
    if rnd.phase is not Phase.OPEN or straggler.patience is Patience.DEADLINE:
        return Step(state)
    if counted >= straggler.cohort_size and straggler.patience is Patience.GOAL:
        return close(state, f"the goal of {straggler.cohort_size} is reached", MemberStatus.OVER_SELECTED, now)
    if roster.outstanding == 0 and counted >= straggler.quorum:
        return close(state, "nobody is outstanding", MemberStatus.OVER_SELECTED, now)
    return Step(state)


def at_deadline(state: RunState, now: float) -> Step:
    """Close with the quorum, abandon without."""
    counted, quorum = present(state), state.policy.straggler.quorum
    if counted >= quorum:
        return close(state, "the deadline has passed", MemberStatus.TIMED_OUT, now)
    reason = f"{counted} of {quorum} needed had reported at the deadline"
    return abandon(state, reason, MemberStatus.TIMED_OUT, now)


def present(state: RunState) -> int:
    """What the live round has of its quorum and its goal."""
    rnd = live(state)
    return rnd.counted + (rnd.roster.rejected if state.policy.straggler.refused_count else 0)


def close(state: RunState, reason: str, outstanding: MemberStatus, now: float) -> Step:
    """Fix the set that is summed; who is still outstanding gets that status, and where late work is dropped, a stop."""
    rnd = live(state)
    roster = _dismiss(rnd.roster, outstanding, reason, now)
    closed = replace(rnd, phase=Phase.CLOSING, reason=reason, roster=roster, closed_at=now)
    after = replace(state, round=closed)
    return Step(after, (*stop(state, reason), aggregate(after)))


def aggregate(state: RunState) -> Aggregate:
    """Sum exactly what the round has closed with."""
    rnd = live(state)
    terms = contributions(state.policy, rnd)
    return Aggregate(rnd.key, rnd.kind, terms, total_weight(terms))


def abandon(state: RunState, reason: str, outstanding: MemberStatus, now: float) -> Step:
    """Give the attempt up: try again, or when attempts are spent end the run (train) or go on without (evaluate).

    An evaluation that too few could be drawn for is not tried again: who cannot evaluate will not learn it by waiting.
    """
    rnd = live(state)
    hopeless = rnd.kind is RoundKind.EVALUATE and rnd.phase is Phase.SAMPLED
    keep = carries(state, rnd.kind)
    dropped = void(state, reason, outstanding, keep, now)
    if attempts_left(state, rnd.key) and not hopeless:
        then = _await_retry(dropped.state, now)
    elif rnd.kind is RoundKind.TRAIN:
        spent = f"round {rnd.key.round + 1} was abandoned{_how_often(rnd.key.attempt + 1)} because {reason}"
        spent += _commonest_reason(rnd.roster)
        then = end_run(dropped.state, RunStatus.FAILED, spent, now)
    else:
        then = advance(dropped.state, now)
    return then.after(*stop(state, reason), *dropped.effects)


def _able(rnd: RoundState) -> str:
    if rnd.phase is not Phase.SAMPLED:
        return "can still report"
    return "can evaluate" if rnd.kind is RoundKind.EVALUATE else "were drawn"


def _commonest_reason(roster: Roster) -> str:
    """What most members that left gave as their reason, for an operator who looks at the run and not at its members."""
    left = Counter(f"{m.status}: {m.detail}" for m in roster if m.status in _LEFT)
    if not left:
        return ""
    said, times = min(left.items(), key=lambda item: (-item[1], item[0]))
    return f"; {times} of {counted(len(roster), 'member')} {said}"


def _how_often(times: int) -> str:
    return "" if times == 1 else f" {times} times, lastly"


def void(state: RunState, reason: str, outstanding: MemberStatus, keep: bool, now: float) -> Step:
    """The live round as abandoned and recorded; its reports are carried over (`keep`) or discarded with a reason."""
    rnd = live(state)
    roster = _dismiss(rnd.roster, outstanding, reason, now)
    reported = [m for m in roster if m.status is MemberStatus.REPORTED]
    fate = "update carried to the next attempt" if keep else "report discarded"
    for m in reported:
        detail = f"round abandoned: {reason}; {fate}"
        kept = m.update if keep else None
        roster = roster.put(replace(m, status=MemberStatus.STOPPED, detail=detail, update=kept, at=now))
    own = tuple(Carried(m.update, rnd.version) for m in reported if m.update is not None) if keep else ()
    taken = tuple(Carried(c.update, c.version) for c in rnd.carried)
    ended = replace(rnd, phase=Phase.ABANDONED, reason=reason, roster=roster, carried=(), ended_at=now)
    tally = replace(state.tally, abandoned=state.tally.abandoned + 1)
    return settle(replace(state, carried=(*taken, *state.carried, *own), tally=tally), ended)


def _await_retry(state: RunState, now: float) -> Step:
    if state.pause_requested:
        return pause(state)
    return Step(state, (*drop_spools(state, state.carried), wait_for_retry(state, now)))


def wait_for_retry(state: RunState, now: float) -> StartRetry:
    """The rest of the delay since the abandonment; a clock that jumped makes it neither negative nor longer."""
    rnd, delay_s = live(state), state.policy.straggler.retry_delay_s
    return StartRetry(rnd.key, min(delay_s, max(0.0, rnd.ended_at + delay_s - now)))


def _dismiss(roster: Roster, status: MemberStatus, reason: str, now: float) -> Roster:
    if roster.outstanding == 0:
        return roster

    def dismissed(m: Member) -> Member:
        return replace(m, status=status, detail=reason, at=now) if m.status in OUTSTANDING else m

    return Roster.of(dismissed(m) for m in roster)


def stop(state: RunState, reason: str) -> tuple[Stop, ...]:
    """Where late work is carried nobody is stopped; a silent member is told when it reconnects."""
    rnd = live(state)
    working = rnd.roster.with_status(*MAY_REPORT)
    if not working or carries(state, rnd.kind):
        return ()
    return (Stop(rnd.key, working, reason),)
