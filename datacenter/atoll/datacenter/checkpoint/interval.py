"""How often to checkpoint: Young (1974) and Daly (2006), as pure functions.

Too often, and the job does little else; too seldom, and a failure loses much. With ``cost_s`` the time that training
stands still for one checkpoint and ``failure_s`` the mean time between failures (exponential), the expected time that a
job takes is shortest near ``sqrt(2 * cost_s * failure_s)`` between checkpoints.

A checkpoint that is written while training goes on costs only what training stands still for; how long the writing
takes does not move the optimum (Vaidya 1997), but a new one cannot begin before the last is written.
"""

from __future__ import annotations

from math import exp, sqrt


def young_interval_s(cost_s: float, failure_s: float) -> float:
    """Work between two checkpoints, to first order (Young 1974)."""
    return sqrt(2 * cost_s * failure_s)


def daly_interval_s(cost_s: float, failure_s: float) -> float:
    """Work between two checkpoints, to higher order (Daly 2006: perturbation solution of the complete model).

    Args:
        cost_s: of one checkpoint, from 0.
        failure_s: mean time between failures, above 0.

    Returns:
        Seconds; ``failure_s`` where a checkpoint costs twice that or more.
    """
    if cost_s >= 2 * failure_s:
        return failure_s
    ratio = cost_s / (2 * failure_s)
    return young_interval_s(cost_s, failure_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_s


def expected_time_s(work_s: float, interval_s: float, cost_s: float, failure_s: float, restart_s: float) -> float:
    """How long a job takes, failures included, which may strike checkpoints and restarts too (Daly 2006).

    Args:
        work_s: without checkpoints and failures.
        interval_s: work between two checkpoints.
        cost_s: of one checkpoint.
        failure_s: mean time between failures.
        restart_s: from a failure until work goes on.
    """
    pieces = work_s / interval_s
    return failure_s * exp(restart_s / failure_s) * (exp((interval_s + cost_s) / failure_s) - 1) * pieces
