"""What one event makes of a run."""

from dataclasses import dataclass

from atoll.server.rounds.effects import Effect
from atoll.server.rounds.errors import RoundError
from atoll.server.rounds.values import RoundState, RunState


@dataclass(frozen=True, slots=True)
class Step:
    """The next state, and the effects to be done in order once the event is durable.

    When `state` is the very object that was passed in, the event changed nothing and need not be persisted.
    """

    state: RunState
    effects: tuple[Effect, ...] = ()

    def after(self, *effects: Effect) -> "Step":
        """This step with `effects` done before its own."""
        return Step(self.state, (*effects, *self.effects))


def live(state: RunState) -> RoundState:
    """The round being played.

    Raises:
        RoundError: there is none, so the table has sent an event to a handler that cannot take it.
    """
    if state.round is None:
        raise RoundError(f"run {state.run_id} has no round; the transition table lets an event through too early")
    return state.round
