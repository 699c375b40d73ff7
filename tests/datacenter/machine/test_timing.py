"""A timing is of one call, whatever the number of calls in a sample."""

from __future__ import annotations

import time

import pytest
import torch

from atoll.datacenter.machine import timing
from atoll.datacenter.machine.timing import MAX_CALLS, SAMPLES, measure

CPU = torch.device("cpu")


class Clock:
    """Moves when work is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.now, self.calls, self.seconds = 0.0, 0, seconds
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def work(self) -> None:
        self.now += self.seconds[min(self.calls, len(self.seconds) - 1)]
        self.calls += 1


def test_the_first_call_warms_up_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 5.0, 0.5)
    found = measure(clock.work, CPU)
    assert (found.seconds, found.spread, found.calls) == (0.5, 0.0, SAMPLES)


def test_quick_work_is_repeated_within_a_sample_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure(Clock(monkeypatch, 1.0, 1 / 1024).work, CPU)
    assert found.seconds == pytest.approx(1 / 1024)
    assert found.calls == 11 * SAMPLES
    assert measure(Clock(monkeypatch, 1e-9).work, CPU).calls == MAX_CALLS * SAMPLES


def test_the_median_counts_and_the_spread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 50.0)
    assert len(samples) == timing.SAMPLES
    found = measure(Clock(monkeypatch, 1.0, 1.0, *samples).work, CPU)
    assert found.seconds == 1.0
    assert found.spread == pytest.approx((3.0 - 1.0) / 2)
