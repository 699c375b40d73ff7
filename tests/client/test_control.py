from __future__ import annotations

import threading
from typing import Any

import pytest

from atoll.client.control import TaskControl
from tests.patience import WAIT_S


def test_only_the_time_to_send_is_left() -> None:
    control = TaskControl(100.0)
    before = control.should_stop
    control.reserve_s = 101.0
    assert (before, control.should_stop) == (False, True)
    assert not control.stop_event.is_set()


def test_the_timer_says_stop_when_the_reserve_is_reached() -> None:
    control = TaskControl(0.2)
    control.arm(reserve_s=0.1)
    assert control.stop_event.wait(WAIT_S)
    assert control.reason == "the deadline is near"
    assert control.remaining_s <= 0.1


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Timer]:
    """The timers that are started, in order."""
    started: list[threading.Timer] = []
    start = threading.Timer.start

    def noted(timer: threading.Timer) -> None:
        started.append(timer)
        start(timer)

    monkeypatch.setattr(threading.Timer, "start", noted)
    return started


def is_cancelled(timer: threading.Timer) -> bool:
    return timer.finished.is_set()


def test_a_new_deadline_moves_the_timer(timers: list[threading.Timer]) -> None:
    control = TaskControl(3600.0)
    control.arm(reserve_s=10.0)
    control.extend(1800.0)
    before, after = timers
    assert is_cancelled(before)
    assert not is_cancelled(after)
    assert 1600.0 < after.interval <= 1790.0
    before.function()  # it had just fired when it was cancelled
    assert not control.stop_event.is_set()
    control.disarm()


def test_a_deadline_that_comes_while_the_timer_is_set_counts(
    timers: list[threading.Timer], monkeypatch: pytest.MonkeyPatch
) -> None:
    control = TaskControl(3600.0)
    server = threading.Thread(target=control.extend, args=(1800.0,))

    class Slow(threading.Timer):
        """Is made while another thread sets the deadline, unless that waits for it."""

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            if server.ident is None:
                server.start()
                server.join(0.2)

    monkeypatch.setattr(threading, "Timer", Slow)
    control.arm(reserve_s=10.0)
    server.join(WAIT_S)
    assert timers[-1].interval <= 1790.0
    assert [is_cancelled(timer) for timer in timers] == [True] * (len(timers) - 1) + [False]
    control.disarm()


def test_disarmed_the_deadline_passes_without_a_word(timers: list[threading.Timer]) -> None:
    control = TaskControl(3600.0)
    control.arm(reserve_s=0.0)
    control.disarm()
    assert is_cancelled(timers[0])
    control.extend(0.0)
    assert control.should_stop
    assert len(timers) == 1
    assert not control.stop_event.is_set()


def test_the_first_reason_is_kept() -> None:
    control = TaskControl(1.0)
    control.stop("first")
    control.abandon("second")
    assert control.reason == "first"
    assert control.abandoned.is_set()


def test_watchers_are_called_once_while_they_watch() -> None:
    control = TaskControl(1.0)
    stops, abandons = [], []
    with control.on_stop(lambda: stops.append(1)), control.on_abandon(lambda: abandons.append(1)):
        control.stop("soft")
        assert (stops, abandons) == ([1], [])
        control.abandon("hard")
        assert (stops, abandons) == ([1, 1], [1])
    control.abandon("again")
    assert (stops, abandons) == ([1, 1], [1])


def test_a_late_watcher_is_called_at_once() -> None:
    control = TaskControl(1.0)
    control.abandon("over")
    called = threading.Event()
    with control.on_abandon(called.set):
        assert called.is_set()
