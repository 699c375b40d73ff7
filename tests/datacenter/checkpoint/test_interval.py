"""Against the papers' formulas: Young 1974, Daly 2006."""

from __future__ import annotations

from math import exp, sqrt

import pytest

from atoll.datacenter.checkpoint.interval import (
    Costs,
    daly_interval_s,
    steps_until_next,
    young_interval_s,
)

DAY = 86_400.0


def expected_time_s(work_s: float, interval_s: float, cost_s: float, failure_s: float, restart_s: float) -> float:
    """Return the duration of a job with failures, which may also hit checkpoints and restarts (Daly 2006).

    Args:
        work_s: seconds without checkpoints and failures.
        interval_s: work between two checkpoints.
        cost_s: seconds of one checkpoint.
        failure_s: mean time between failures.
        restart_s: seconds from a failure until work continues.
    """
    pieces = work_s / interval_s
    return failure_s * exp(restart_s / failure_s) * (exp((interval_s + cost_s) / failure_s) - 1) * pieces


def test_young_is_the_root_of_twice_cost_times_failure_time() -> None:
    """Young 1974: T_c = sqrt(2 T_s T_f)."""
    assert young_interval_s(60.0, DAY) == pytest.approx(sqrt(2 * 60 * DAY))
    assert young_interval_s(60.0, DAY) == pytest.approx(3219.9, abs=0.1)


@pytest.mark.parametrize("cost_s", [0.1, 10.0, 300.0, 1800.0])
def test_daly_is_next_to_the_shortest_expected_time(cost_s: float) -> None:
    """Daly 2006: within 5 % of the optimum of the complete model, found by search; never worse than Young's."""
    failure_s = 3600.0

    def time_s(interval_s: float) -> float:
        return expected_time_s(DAY, interval_s, cost_s, failure_s, restart_s=120.0)

    best = min((step * 1.01 for step in geometric(1.0, 4 * failure_s)), key=time_s)
    daly = daly_interval_s(cost_s, failure_s)
    assert time_s(daly) <= time_s(best) * 1.001
    assert time_s(daly) <= time_s(young_interval_s(cost_s, failure_s)) * (1 + 1e-9)
    assert daly == pytest.approx(best, rel=0.05)


def geometric(first: float, last: float) -> list[float]:
    found = [first]
    while found[-1] < last:
        found.append(found[-1] * 1.01)
    return found


def test_a_checkpoint_dearer_than_twice_the_failure_time_comes_once_in_that_time() -> None:
    """Daly 2006, second case of the estimate."""
    assert daly_interval_s(200.0, 100.0) == 100.0
    assert daly_interval_s(1000.0, 100.0) == 100.0


def test_expected_time_without_failures_is_work_and_checkpoints() -> None:
    """As M goes to infinity, Daly's complete model goes to (tau + delta) * T_s / tau."""
    assert expected_time_s(1000.0, 100.0, 10.0, 1e9, 0.0) == pytest.approx(1100.0, rel=1e-5)


def test_steps_follow_the_measured_cost() -> None:
    cheap = steps_until_next(Costs(step_s=1.0, stall_s=0.5, write_s=0.0), failure_hours=24.0)
    dear = steps_until_next(Costs(step_s=1.0, stall_s=50.0, write_s=0.0), failure_hours=24.0)
    assert cheap == pytest.approx(sqrt(2 * 0.5 * DAY), rel=0.01)
    assert dear == pytest.approx(10 * cheap, rel=0.02)


def test_no_checkpoint_is_due_while_one_is_written() -> None:
    assert steps_until_next(Costs(step_s=2.0, stall_s=1e-6, write_s=100.0), failure_hours=24.0) == 50


def test_a_step_is_the_least() -> None:
    assert steps_until_next(Costs(step_s=1e6, stall_s=1.0, write_s=0.0), failure_hours=0.1) == 1
