"""The engine's interface: begin a run, take one step, replay a log, resume after a crash."""

from collections.abc import Callable, Iterable

from atoll.server.rounds import late_reports
from atoll.server.rounds.closing import aggregate, wait_for_retry
from atoll.server.rounds.effects import Effect, Finish
from atoll.server.rounds.errors import IllegalTransition, RoundError
from atoll.server.rounds.events import (
    CancelRequested,
    Event,
    ExtendRequested,
    PauseRequested,
    Rejected,
    ResumeRequested,
    Started,
)
from atoll.server.rounds.lifecycle import draw, drop_spools, drop_unneeded
from atoll.server.rounds.opening import open_effects, prepare
from atoll.server.rounds.policy import RunPolicy
from atoll.server.rounds.publication import charge, publish
from atoll.server.rounds.report_checks import is_of
from atoll.server.rounds.roster import MAY_REPORT
from atoll.server.rounds.run_state import RunState, RunStatus
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.table import IGNORED, TABLE, Situation
from atoll.server.rounds.updates import RoundKey


def initial(run_id: str, policy: RunPolicy, model: str) -> RunState:
    """A run that waits for `Started`; `model` is the hex digest of its initial model."""
    return RunState(run_id, policy, model)


def situation(state: RunState) -> Situation:
    """The run's row of the transition table."""
    if state.status is RunStatus.SUBMITTED:
        return Situation.NEW
    if state.status.ended:
        return Situation.ENDED
    if state.status is RunStatus.PAUSED:
        return Situation.PAUSED
    return Situation(live(state).phase)


def step(state: RunState, event: Event, now: float) -> Step:
    """The run after the event at epoch second `now`, and the effects that the shell must do.

    Pure: equal arguments give equal steps. `now` is only written down; no transition depends on it.

    Raises:
        IllegalTransition: the table neither lists nor ignores the event in the run's situation.
        MismatchedSum: an `Aggregated` is about another set than the round's.
    """
    here = situation(state)
    row = row_of(state, event, here)
    if type(event) in IGNORED[row]:
        return Step(state)
    move = TABLE.get((row, type(event)))
    if move is None:
        raise IllegalTransition(state.run_id, row, event.kind, _where(state))
    result = move.handler(state, event, now)
    there = situation(result.state)
    if there is not here and there not in move.to:
        raise RoundError(f"run {state.run_id}: {event.kind!r} led from {here} to {there}, outside the transition table")
    return result


def row_of(state: RunState, event: Event, here: Situation) -> Situation:
    """The table's row for the event: the run's situation, or PAST when it is about an earlier round."""
    if isinstance(event, _OF_THE_RUN):
        return here
    rnd = state.round
    if rnd is None or event.key > rnd.key:
        raise IllegalTransition(state.run_id, here, event.kind, f"round {event.key} has not begun; {_where(state)}")
    if event.key == rnd.key or here is Situation.ENDED:
        return here
    if isinstance(event, Rejected) and here in _SET_MAY_SHRINK and any(is_of(c, event) for c in rnd.carried):
        return here
    return Situation.PAST


_OF_THE_RUN = (Started, PauseRequested, ResumeRequested, CancelRequested, ExtendRequested)
"""Events about the run as a whole, without a round's key."""
_SET_MAY_SHRINK = (Situation.SAMPLED, Situation.OPEN, Situation.CLOSING)


def _where(state: RunState) -> str:
    return "no round has begun" if state.round is None else f"the run is at round {state.round.key}"


def replay(state: RunState, log: Iterable[tuple[Event, float]]) -> RunState:
    """The run after these events, each with the epoch second that it was stepped at."""
    for event, now in log:
        state = step(state, event, now).state
    return state


def resume(state: RunState, now: float) -> tuple[Effect, ...]:
    """The effects whose answers the run is waiting for, to be done again after a restart.

    Records (`RecordRound`, `RecordMember`) and receipts are left out: the shell writes records in the transaction that
    persists their event, and a participant that got no receipt sends its report again.
    """
    return _RESUME[situation(state)](state, now)


_Pending = Callable[[RunState, float], tuple[Effect, ...]]


def _open(state: RunState, now: float) -> tuple[Effect, ...]:
    """The effects that an open round waits for; if the clock jumped, the remaining time is 0 to the whole window.

    At the instant of the opening it is exactly the whole window, because a difference of epoch seconds is rounded.
    """
    rnd = live(state)
    if now <= rnd.opened_at:
        return open_effects(state, rnd.window_s)
    return open_effects(state, min(rnd.window_s, max(0.0, rnd.deadline_at - now)))


_RESUME: dict[Situation, _Pending] = {
    Situation.NEW: lambda _state, _now: (),
    Situation.CREATED: lambda state, _now: (*drop_spools(state, state.carried), draw(state)),
    Situation.SAMPLED: lambda state, _now: (prepare(state),),
    Situation.OPEN: _open,
    Situation.CLOSING: lambda state, _now: (aggregate(state),),
    Situation.AGGREGATED: lambda state, _now: (charge(state),),
    Situation.CHARGED: lambda state, _now: (publish(state),),
    Situation.ABANDONED: lambda state, now: (*drop_spools(state, state.carried), wait_for_retry(state, now)),
    Situation.PAUSED: lambda state, _now: drop_unneeded(state),
    Situation.ENDED: lambda state, _now: (*drop_spools(state, ()), Finish(state.status, state.reason)),
}


def wants(state: RunState, key: RoundKey, participant: str) -> bool:
    """Whether a report of this participant for that round would still be counted or carried.

    For the shell: ask before an upload begins, and when a participant reconnects with work in hand.
    """
    rnd = state.round
    if rnd is not None and rnd.key == key and situation(state) is Situation.OPEN:
        member = rnd.roster.get(participant)
        return member is not None and member.status in MAY_REPORT
    return late_reports.wants(state, key, participant)
