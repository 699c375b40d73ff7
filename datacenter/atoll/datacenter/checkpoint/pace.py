"""When the next checkpoint is due, from what the last ones cost. Pure: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from atoll.datacenter.checkpoint.interval import daly_interval_s

FIRST_STEPS = 10
"""Steps before the first checkpoint of a job whose cost is not known yet."""
MAX_STEPS = 1 << 40
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured, the dearest rank's.

    Attributes:
        step_s: one step.
        stall_s: how long training stood still for the last checkpoint.
        write_s: from the beginning of the last one until it was durable; 0 if none is.
    """

    step_s: float
    stall_s: float
    write_s: float


def steps_until_next(costs: Costs, failure_hours: float) -> int:
    """Steps between checkpoints, from 1: Daly's interval, but no shorter than one takes to write."""
    interval_s = max(daly_interval_s(costs.stall_s, failure_hours * _SECONDS_PER_HOUR), costs.write_s)
    return min(MAX_STEPS, max(1, ceil(interval_s / max(costs.step_s, 1e-9))))
