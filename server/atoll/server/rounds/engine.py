"""The engine's face: begin a run, take one step, replay a log, resume after a crash."""

from collections.abc import Iterable

from atoll.server.rounds import late
from atoll.server.rounds.effects import Effect
from atoll.server.rounds.errors import IllegalTransition, RoundError
from atoll.server.rounds.events import (
    CancelRequested,
    Event,
    PauseRequested,
    Rejected,
    ResumeRequested,
    Started,
)
from atoll.server.rounds.policy import RunPolicy
from atoll.server.rounds.reports import is_of
from atoll.server.rounds.resuming import RESUME
from atoll.server.rounds.roster import MAY_REPORT
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.table import TABLE, Situation
from atoll.server.rounds.updates import RoundKey
from atoll.server.rounds.values import RunState, RunStatus


def initial(run_id: str, policy: RunPolicy, model: str) -> RunState:
    """A run that waits for `Started`; `model` is the hex digest of its initial model."""
    return RunState(run_id, policy, model)


def situation(state: RunState) -> Situation:
    """Where the run stands, in the transition table's words."""
    if state.status is RunStatus.SUBMITTED:
        return Situation.NEW
    if state.status.ended:
        return Situation.ENDED
    if state.status is RunStatus.PAUSED:
        return Situation.PAUSED
    return Situation(live(state).phase)


def step(state: RunState, event: Event, now: float) -> Step:
    """What the event makes of the run at epoch second `now`, and what the shell must do about it.

    Pure: equal arguments give equal steps. `now` is only written down; no transition depends on it.

    Raises:
        IllegalTransition: the table does not list the event for the run's situation.
        MismatchedSum: an `Aggregated` is about another set than the round's.
    """
    here = situation(state)
    row = row_of(state, event, here)
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
    if isinstance(event, Started | PauseRequested | ResumeRequested | CancelRequested):
        return here
    rnd = state.round
    if rnd is None or event.key > rnd.key:
        raise IllegalTransition(state.run_id, here, event.kind, f"round {event.key} has not begun; {_where(state)}")
    if event.key == rnd.key or here is Situation.ENDED:
        return here
    if isinstance(event, Rejected) and here in _SET_MAY_SHRINK and any(is_of(c, event) for c in rnd.carried):
        return here
    return Situation.PAST


_SET_MAY_SHRINK = (Situation.SAMPLED, Situation.OPEN, Situation.CLOSING)


def _where(state: RunState) -> str:
    return "no round has begun" if state.round is None else f"the run is at round {state.round.key}"


def replay(state: RunState, log: Iterable[tuple[Event, float]]) -> RunState:
    """The run after these events, each with the epoch second that it was stepped at."""
    for event, now in log:
        state = step(state, event, now).state
    return state


def resume(state: RunState, now: float) -> tuple[Effect, ...]:
    """The effects that the run is waiting for, to be done again after a restart.

    Records (`RecordRound`, `RecordMember`) and receipts are not among them: the shell writes records in the transaction
    that persists their event, and a participant without its receipt sends its report again.
    """
    return RESUME[situation(state)](state, now)


def wants(state: RunState, key: RoundKey, participant: str) -> bool:
    """Whether a report of this participant for that round would still be taken, counted or carried.

    For the shell: ask before an upload begins, and when a participant reconnects with work in hand.
    """
    rnd = state.round
    if rnd is not None and rnd.key == key and situation(state) is Situation.OPEN:
        member = rnd.roster.get(participant)
        return member is not None and member.status in MAY_REPORT
    return late.wants(state, key, participant)
