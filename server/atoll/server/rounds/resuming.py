"""What a run waits for in each situation, to be asked for again after a restart."""

from collections.abc import Callable

from atoll.server.rounds.course import draw, drop_spools, drop_unneeded
from atoll.server.rounds.effects import Effect, Finish
from atoll.server.rounds.ending import aggregate, wait_for_retry
from atoll.server.rounds.opening import open_effects, prepare
from atoll.server.rounds.release import charge, publish
from atoll.server.rounds.step import live
from atoll.server.rounds.table import Situation
from atoll.server.rounds.values import RunState

Waiting = Callable[[RunState, float], tuple[Effect, ...]]


def _open(state: RunState, now: float) -> tuple[Effect, ...]:
    """A clock that jumped makes the rest of the window neither negative nor longer than the whole."""
    rnd = live(state)
    return open_effects(state, min(rnd.window_s, max(0.0, rnd.deadline_at - now)))


RESUME: dict[Situation, Waiting] = {
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
