"""How a round ends: it closes with enough contributions, or it is abandoned."""

from dataclasses import replace

from atoll.server.rounds.absences import MISSING, NOT_AGAIN, fails_again, missing_members, what_members_did
from atoll.server.rounds.effects import Aggregate, StartRetry, Stop
from atoll.server.rounds.lifecycle import advance, archive, attempts_left, carries, drop_spools, end_run, pause
from atoll.server.rounds.policy import Patience
from atoll.server.rounds.roster import LEFT, MAY_REPORT, OUTSTANDING, Member, MemberStatus, Roster
from atoll.server.rounds.run_state import Carried, Phase, RoundKind, RunState, RunStatus
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.weights import contributions, total_weight
from atoll.text.figures import counted


def judge(state: RunState, now: float) -> Step:
    """Decide, after a change to a sampled or open round, whether it continues, closes or is abandoned.

    Once the quorum is met, the round waits for a silent member only if the job requires that member. Below the quorum,
    the round is not abandoned while a silent member may come back.
    """
    rnd, straggler = live(state), state.policy.straggler
    roster, contributed = rnd.roster, present(state)
    if roster.missed:
        return abandon_without_required(state, LEFT, now)
    if contributed + roster.outstanding + roster.silent < straggler.quorum:
        return abandon(state, _out_of_reach(state), MemberStatus.STOPPED, now)
    if rnd.phase is not Phase.OPEN or straggler.patience is Patience.DEADLINE or roster.awaited:
        return Step(state)
    if contributed >= straggler.cohort_size and straggler.patience is Patience.GOAL:
        return close(state, f"the goal of {straggler.cohort_size} is reached", MemberStatus.OVER_SELECTED, now)
    if roster.outstanding == 0 and contributed >= straggler.quorum:
        return close(state, "no member is outstanding", MemberStatus.OVER_SELECTED, now)
    return Step(state)


def at_deadline(state: RunState, now: float) -> Step:
    """Close the round if the quorum is met and each required member has reported; abandon it otherwise."""
    contributed, quorum, roster = present(state), state.policy.straggler.quorum, live(state).roster
    if roster.awaited:
        return abandon_without_required(state, MAY_REPORT, now)
    if contributed >= quorum:
        return close(state, "the deadline has passed", MemberStatus.TIMED_OUT, now)
    reason = f"quorum {quorum} was missed at the deadline: {counted(contributed, 'report')} counted"
    return abandon(state, reason, MemberStatus.TIMED_OUT, now)


def _out_of_reach(state: RunState) -> str:
    rnd, quorum = live(state), state.policy.straggler.quorum
    able = present(state) + rnd.roster.outstanding + rnd.roster.silent
    if rnd.phase is Phase.SAMPLED:
        able_to = "can evaluate" if rnd.kind is RoundKind.EVALUATE else "could be drawn"
        return f"quorum {quorum} cannot be reached: {counted(able, 'participant')} {able_to}"
    few = f"only {counted(able, 'member')}" if able else "no member"
    return f"quorum {quorum} can no longer be reached: {few} could report"


def present(state: RunState) -> int:
    """How many contributions count towards the quorum and the goal of the live round."""
    rnd = live(state)
    return rnd.counted + (rnd.roster.rejected if state.policy.straggler.refused_count else 0)


def close(state: RunState, reason: str, outstanding: MemberStatus, now: float) -> Step:
    """Fix the set that is summed. Outstanding members get this status, and a stop if late reports are dropped."""
    rnd = live(state)
    roster = _dismiss(rnd.roster, outstanding, reason, now)
    closed = replace(rnd, phase=Phase.CLOSING, reason=reason, roster=roster, closed_at=now)
    after = replace(state, round=closed)
    return Step(after, (*stop(state, reason), aggregate(after)))


def aggregate(state: RunState) -> Aggregate:
    """Ask for the sum of exactly the contributions that the round closed with."""
    rnd = live(state)
    terms = contributions(state.policy, rnd)
    return Aggregate(rnd.key, rnd.kind, terms, total_weight(terms))


def abandon(state: RunState, reason: str, outstanding: MemberStatus, now: float, detail: str = "") -> Step:
    """Abandon the attempt and try again; with no attempt left, fail the run (train) or skip the round (evaluate).

    An evaluation for which too few participants could be drawn is skipped at once: waiting does not make a participant
    able to evaluate. An attempt that failed for the same reasons as the previous one is the last. An evaluation that
    lacks a required member also fails the run. Members get the reason; ``detail``, which names members, is for
    operators.
    """
    rnd = live(state)
    hopeless = rnd.kind is RoundKind.EVALUATE and rnd.phase is Phase.SAMPLED
    final = fails_again(state)
    recorded = f"{reason}{detail}{NOT_AGAIN if final else ''}"
    dropped = void(state, reason, outstanding, carries(state, rnd.kind), now, recorded)
    short_of = bool(rnd.roster.missed or rnd.roster.awaited)
    if attempts_left(state, rnd.key) and not hopeless and not final:
        then = _await_retry(dropped.state, now)
    elif rnd.kind is RoundKind.TRAIN or short_of:
        spent = f"round {rnd.key.round + 1} was abandoned{_how_often(rnd.key.attempt + 1)} because {recorded}"
        spent += "" if short_of else what_members_did(rnd.roster)
        then = end_run(dropped.state, RunStatus.FAILED, spent, now)
    else:
        then = advance(dropped.state, now)
    return then.after(*stop(state, reason), *dropped.effects)


def abandon_without_required(state: RunState, statuses: frozenset[MemberStatus], now: float) -> Step:
    """Abandon the attempt because required members with one of these statuses are missing."""
    outstanding = MemberStatus.TIMED_OUT if statuses is MAY_REPORT else MemberStatus.STOPPED
    return abandon(state, MISSING, outstanding, now, f": {missing_members(live(state).roster, statuses)}")


def _how_often(times: int) -> str:
    return "" if times == 1 else f" {times} times, lastly"


def void(state: RunState, reason: str, outstanding: MemberStatus, keep: bool, now: float, recorded: str = "") -> Step:
    """Mark the live round abandoned and record it; carry its reports over (`keep`), or discard them with a reason.

    The members get ``reason``; the round's record gets ``recorded`` where it is given.
    """
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
    ended = replace(rnd, phase=Phase.ABANDONED, reason=recorded or reason, roster=roster, carried=(), ended_at=now)
    tally = replace(state.tally, abandoned=state.tally.abandoned + 1)
    return archive(replace(state, carried=(*taken, *state.carried, *own), tally=tally), ended)


def _await_retry(state: RunState, now: float) -> Step:
    if state.pause_requested:
        return pause(state)
    return Step(state, (*drop_spools(state, state.carried), wait_for_retry(state, now)))


def wait_for_retry(state: RunState, now: float) -> StartRetry:
    """Wait for the rest of the retry delay: at least 0, at most the whole delay, even if the clock jumped."""
    rnd, delay_s = live(state), state.policy.straggler.retry_delay_s
    return StartRetry(rnd.key, min(delay_s, max(0.0, rnd.ended_at + delay_s - now)))


def _dismiss(roster: Roster, status: MemberStatus, reason: str, now: float) -> Roster:
    if roster.outstanding == 0:
        return roster

    def dismissed(m: Member) -> Member:
        return replace(m, status=status, detail=reason, at=now) if m.status in OUTSTANDING else m

    return Roster.of(dismissed(m) for m in roster)


def stop(state: RunState, reason: str) -> tuple[Stop, ...]:
    """Stop the members that may still report, unless late reports are carried; the shell repeats it on reconnecting."""
    rnd = live(state)
    working = rnd.roster.with_status(*MAY_REPORT)
    if not working or carries(state, rnd.kind):
        return ()
    return (Stop(rnd.key, working, reason),)
