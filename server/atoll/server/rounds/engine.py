"""The engine's face: begin a run, take one step, replay a log, resume after a crash."""

from collections.abc import Iterable

from atoll.server.rounds.effects import Effect
from atoll.server.rounds.events import Event
from atoll.server.rounds.policy import RunPolicy
from atoll.server.rounds.step import Step
from atoll.server.rounds.values import RunState


def initial(run_id: str, policy: RunPolicy, model: str) -> RunState:
    """A run that waits for `Started`; `model` is the hex digest of its initial model."""
    return RunState(run_id, policy, model)


def step(state: RunState, event: Event, now: float) -> Step:
    """What the event makes of the run at epoch second `now`, and what the shell must do about it."""
    raise NotImplementedError


def resume(state: RunState, now: float) -> tuple[Effect, ...]:
    """The effects that the run is waiting for, to be done again after a restart."""
    raise NotImplementedError


def replay(state: RunState, log: Iterable[tuple[Event, float]]) -> RunState:
    """The run after these events, each with the epoch second that it was stepped at."""
    for event, now in log:
        state = step(state, event, now).state
    return state
