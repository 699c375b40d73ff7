"""Handlers of the operator's commands, of a spent budget, and of effects that failed permanently."""

from dataclasses import replace

from atoll.server.rounds.closing import stop, void
from atoll.server.rounds.errors import IllegalTransition
from atoll.server.rounds.events import (
    BudgetSpent,
    CancelRequested,
    EffectFailed,
    ExtendRequested,
    PauseRequested,
    ResumeRequested,
)
from atoll.server.rounds.lifecycle import advance, attempts_left, begin, end_run, pause, retry
from atoll.server.rounds.publication import charge
from atoll.server.rounds.roster import MemberStatus
from atoll.server.rounds.run_state import Phase, RunState, RunStatus
from atoll.server.rounds.step import Step

DONE = (Phase.RELEASED, Phase.ABANDONED)


def on_pause_later(state: RunState, event: PauseRequested, now: float) -> Step:
    """Pause once the live round is finished."""
    del event, now
    return Step(state if state.pause_requested else replace(state, pause_requested=True))


def on_pause_now(state: RunState, event: PauseRequested, now: float) -> Step:
    """Pause at once, since no member is at work."""
    del event, now
    return pause(state)


def on_resume_early(state: RunState, event: ResumeRequested, now: float) -> Step:
    """Cancel a requested pause that has not begun."""
    del event, now
    return Step(replace(state, pause_requested=False) if state.pause_requested else state)


def on_resume(state: RunState, event: ResumeRequested, now: float) -> Step:
    """Continue where the pause left the run."""
    del event
    rnd, running = state.round, replace(state, status=RunStatus.RUNNING, reason="")
    if rnd is not None and rnd.phase is Phase.CREATED:
        return begin(running, rnd.key, rnd.kind, now)
    if rnd is not None and rnd.phase is Phase.AGGREGATED:
        return Step(running, (charge(running),))
    if rnd is not None and rnd.phase is Phase.ABANDONED and attempts_left(state, rnd.key):
        return retry(running, now)
    return advance(running, now)


def on_budget_spent(state: RunState, event: BudgetSpent, now: float) -> Step:
    """Pause until an operator resumes, perhaps with a higher limit; a sum that was not charged is kept."""
    del now
    return pause(state, event.reason)


def on_cancel(state: RunState, event: CancelRequested, now: float) -> Step:
    """End the run now; the live round is not released."""
    return _break_off(state, RunStatus.CANCELLED, event.reason, now)


def on_cancel_charged(state: RunState, event: CancelRequested, now: float) -> Step:
    """The round is already charged: publish it first, then end the run."""
    del now
    return Step(state if state.cancel_requested is not None else replace(state, cancel_requested=event.reason))


def on_extend(state: RunState, event: ExtendRequested, now: float) -> Step:
    """Continue from the newest model for the requested number of train rounds.

    The stop rule keeps what it has measured. If it ended the run, its patience starts over, since the operator has
    overruled it. A cancelled round begins again under the next number.

    Raises:
        IllegalTransition: the run has failed, and would fail again for the same reason.
    """
    if state.status is RunStatus.FAILED:
        raise IllegalTransition(state.run_id, "ended", event.kind, "the run has failed")
    progress = state.progress
    if state.stopping and progress is not None:
        progress = replace(progress, since=0)
    running = replace(
        state,
        policy=replace(state.policy, rounds=state.version + event.rounds),
        status=RunStatus.RUNNING,
        past=(),  # ending the run deleted the uploads of late reports, so none can be carried any more
        reason="",
        progress=progress,
        stopping="",
    )
    return advance(running, now)


def on_effect_failed(state: RunState, event: EffectFailed, now: float) -> Step:
    """Fail the run and name the effect that failed."""
    return _break_off(state, RunStatus.FAILED, f"{event.effect} of round {event.key}: {event.reason}", now)


def _break_off(state: RunState, status: RunStatus, reason: str, now: float) -> Step:
    rnd = state.round
    if rnd is None or rnd.phase in DONE:
        return end_run(state, status, reason, now)
    why = f"the run has ended ({status}): {reason}"
    voided = void(state, why, MemberStatus.STOPPED, keep=False, now=now)
    return end_run(voided.state, status, reason, now).after(*stop(state, why), *voided.effects)
