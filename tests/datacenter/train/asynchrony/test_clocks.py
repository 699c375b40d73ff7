"""Bounded staleness (Ho et al. 2013, section 2)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.asynchrony.clocks import Clocks
from tests.patience import WAIT_S


def nothing(_: int) -> None:
    """Apply nothing."""


def waiting_on(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set when a worker waits; the clocks are locked until it really does."""
    waiting, wait_for = threading.Event(), clocks._changed.wait_for

    def watched(predicate: Callable[[], object], timeout: float | None = None) -> object:
        waiting.set()
        return wait_for(predicate, timeout)

    monkeypatch.setattr(clocks._changed, "wait_for", watched)
    return waiting


def reader(clocks: Clocks, worker: int, leads: list[int]) -> threading.Thread:
    thread = threading.Thread(target=lambda: leads.append(clocks.wait_to_read(worker, WAIT_S)))
    thread.start()
    return thread


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_worker_waits_exactly_when_it_is_further_ahead_than_allowed(
    staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, leads = Clocks(2, staleness), list[int]()
    for clock in range(staleness + 1):
        assert clocks.wait_to_read(0, 0.0) == clock
        clocks.advance(0, nothing)
    waiting = waiting_on(clocks, monkeypatch)
    thread = reader(clocks, 0, leads)
    assert waiting.wait(WAIT_S)
    assert leads == []
    clocks.advance(1, nothing)
    thread.join(WAIT_S)
    assert leads == [staleness] == [clocks.max_lead]


@settings(deadline=None)
@given(st.integers(0, 4), st.lists(st.integers(0, 2), max_size=60))
def test_who_may_read_sees_every_update_that_is_old_enough(staleness: int, turns: list[int]) -> None:
    clocks, seen = Clocks(3, staleness), list[tuple[int, int]]()
    for worker in turns:
        own = clocks.clock(worker)
        try:
            clocks.wait_to_read(worker, 0.0)
        except TrainingError:
            assert own - min(clocks.clock(other) for other in range(3)) > staleness
            continue
        for other in range(3):
            assert all((other, clock) in seen for clock in range(own - staleness))
        clocks.advance(worker, lambda clock, worker=worker: seen.append((worker, clock)))  # type: ignore[misc]  # mypy knows no defaults of lambdas
    assert clocks.max_lead <= staleness


def test_an_update_is_applied_before_anybody_sees_its_clock() -> None:
    clocks = Clocks(2, 0)
    found: list[int] = []
    clocks.advance(0, lambda clock: found.extend((clock, clocks.clock(0))))
    assert found == [0, 0]
    assert clocks.clock(0) == 1


def test_a_clock_that_has_left_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, leads = Clocks(2, 0), list[int]()
    clocks.advance(0, nothing)
    waiting = waiting_on(clocks, monkeypatch)
    thread = reader(clocks, 0, leads)
    assert waiting.wait(WAIT_S)
    clocks.leave(1)
    thread.join(WAIT_S)
    assert leads == [0]


def test_waiting_ends_with_an_error_that_names_the_slowest() -> None:
    clocks = Clocks(3, 1)
    clocks.advance(1, nothing)
    for _ in range(3):
        clocks.advance(0, nothing)
    with pytest.raises(TrainingError, match=r"worker 0 at clock 3 has waited 0\.01 s for worker 2 at clock 0"):
        clocks.wait_to_read(0, 0.01)


def test_a_lost_worker_wakes_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(2, 0)
    clocks.advance(0, nothing)
    waiting = waiting_on(clocks, monkeypatch)
    said: list[str] = []

    def read() -> None:
        with pytest.raises(TrainingError) as caught:
            clocks.wait_to_read(0, WAIT_S)
        said.append(str(caught.value))

    thread = threading.Thread(target=read)
    thread.start()
    assert waiting.wait(WAIT_S)
    clocks.fail(TrainingError("worker 1 was lost"))
    thread.join(WAIT_S)
    assert said == ["worker 0 stopped: worker 1 was lost"]
