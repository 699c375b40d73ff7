"""Interval between checkpoints: Young (1974) and Daly (2006), as pure functions; times are arguments.

Let ``cost_s`` be the time that training stands still for one checkpoint, and ``failure_s`` the mean time between
failures, which are exponentially distributed. The expected duration of a job is shortest near
``sqrt(2 * cost_s * failure_s)`` between checkpoints.

A checkpoint that is written while training continues costs only the time that training stands still. The duration of
the write does not shift the optimum (Vaidya 1997), but a checkpoint cannot begin before the previous one is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

FIRST_STEPS = 10
"""Steps before the first checkpoint of a job, while its costs are unknown."""
MAX_STEPS = 1 << 40
_SECONDS_PER_HOUR = 3600.0


def young_interval_s(cost_s: float, failure_s: float) -> float:
    """Return the work between two checkpoints, to first order (Young 1974)."""
    return sqrt(2 * cost_s * failure_s)


def daly_interval_s(cost_s: float, failure_s: float) -> float:
    """Return the work between two checkpoints, to higher order (Daly 2006: perturbation of the complete model).

    Args:
        cost_s: seconds of one checkpoint, at least 0.
        failure_s: mean time between failures, above 0.

    Returns:
        Seconds; ``failure_s`` if a checkpoint costs at least twice that.
    """
    if cost_s >= 2 * failure_s:
        return failure_s
    ratio = cost_s / (2 * failure_s)
    return young_interval_s(cost_s, failure_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_s


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured seconds of the most expensive rank.

    Attributes:
        step_s: one step.
        stall_s: standstill of training for the last checkpoint.
        write_s: from the beginning of the last checkpoint until it was on disk; 0 before the first.
    """

    step_s: float
    stall_s: float
    write_s: float


def steps_until_next(costs: Costs, failure_hours: float) -> int:
    """Return the steps between checkpoints, at least 1: Daly's interval, but no less than a write takes."""
    interval_s = max(daly_interval_s(costs.stall_s, failure_hours * _SECONDS_PER_HOUR), costs.write_s)
    return min(MAX_STEPS, max(1, ceil(interval_s / max(costs.step_s, 1e-9))))
