"""What one event makes of a run."""

from dataclasses import dataclass

from atoll.server.rounds.effects import Effect
from atoll.server.rounds.values import RunState


@dataclass(frozen=True, slots=True)
class Step:
    """The next state, and the effects to be done in order once the event is durable.

    When `state` is the very object that was passed in, the event changed nothing and need not be persisted.
    """

    state: RunState
    effects: tuple[Effect, ...] = ()
