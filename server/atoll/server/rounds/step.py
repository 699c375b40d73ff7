"""The result of one event: the next state and the effects."""

from dataclasses import dataclass

from atoll.server.rounds.effects import Effect
from atoll.server.rounds.errors import RoundError
from atoll.server.rounds.run_state import RoundState, RunState


@dataclass(frozen=True, slots=True)
class Step:
    """The next state, and the effects to do in order once the event is durable.

    If `state` is the object that was passed in, the event changed nothing and need not be persisted.
    """

    state: RunState
    effects: tuple[Effect, ...] = ()

    def after(self, *effects: Effect) -> "Step":
        """This step with `effects` placed before its own."""
        return Step(self.state, (*effects, *self.effects))


def live(state: RunState) -> RoundState:
    """The live round.

    Raises:
        RoundError: the run has no round: the table passed an event to a handler that needs one.
    """
    if state.round is None:
        raise RoundError(f"run {state.run_id} has no round; the transition table passed an event too early")
    return state.round
