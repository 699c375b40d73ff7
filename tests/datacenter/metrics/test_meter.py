"""Counters between records, on two ranks that wait differently."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.metrics.meter import Meter, peak_memory_bytes
from tests.datacenter.ranks import run_ranks

CPU = torch.device("cpu")


class Clock:
    """A clock that moves on command."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lap(rank: int) -> dict[str, Any]:
    clock = Clock()
    meter = Meter(CPU, clock)
    for tokens in (64, 32):
        with meter.waiting():
            clock.now += 1.0 + rank
        clock.now += 3.0
        meter.step(tokens)
    found, after = meter.lap(), meter.lap()
    return {
        "first": [found.steps, found.tokens, found.seconds, found.data_wait_s],
        "after": [after.steps, after.tokens, after.seconds, after.data_wait_s],
        "memory": found.peak_memory_bytes >= peak_memory_bytes(CPU) > 1 << 20,
    }


def lap_of_rank() -> dict[str, Any]:
    return lap(dist.get_rank())


def test_one_process() -> None:
    assert lap(0) == {"first": [2, 96, 8.0, 2.0], "after": [0, 0, 0.0, 0.0], "memory": True}


def test_the_slowest_rank_counts() -> None:
    first, second = run_ranks(lap_of_rank, 2)
    assert first["first"] == [2, 96, 8.0, 4.0]
    assert second["first"] == [2, 96, 10.0, 4.0]
    assert first["after"] == second["after"] == [0, 0, 0.0, 0.0]


def wait_in_vain(meter: Meter, clock: Clock) -> None:
    with meter.waiting():
        clock.now += 2.0
        next(iter(()))


def test_waiting_counts_when_the_data_end() -> None:
    clock = Clock()
    meter = Meter(CPU, clock)
    with pytest.raises(StopIteration):
        wait_in_vain(meter, clock)
    assert meter.lap().data_wait_s == 2.0


def test_work_that_is_not_training_does_not_count() -> None:
    clock = Clock()
    meter = Meter(CPU, clock)
    clock.now += 1.0
    with meter.pausing():
        clock.now += 5.0
    clock.now += 2.0
    assert meter.lap().seconds == 3.0
