"""The time that an attempt at a round spent in each phase."""

from __future__ import annotations

from atoll.server.control import PHASES
from atoll.server.rounds import RoundState


def phase_seconds(state: RoundState) -> dict[str, float]:
    """Seconds that an attempt spent in each finished phase of ``PHASES``, in order.

    For an abandoned attempt, the remaining time belongs to its current phase. A clock that was set back gives 0.
    """
    ends = (state.sampled_at, state.opened_at, state.closed_at, state.aggregated_at, state.charged_at, state.ended_at)
    found, began = {}, state.created_at
    for name, ended in zip(PHASES, ends, strict=True):
        end = ended or state.ended_at
        if not end:
            break
        found[name] = max(0.0, end - began)
        if not ended:
            break
        began = end
    return found
