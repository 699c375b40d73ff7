from __future__ import annotations

import threading

import pytest

from atoll.client._transfer.stall import StallWatch, guarded
from atoll.client.control import TaskControl
from tests.patience import WAIT_S


def test_a_transfer_that_does_not_move_is_broken_off_once(caplog: pytest.LogCaptureFixture) -> None:
    cancelled = threading.Event()
    calls: list[int] = []

    def cancel() -> None:
        calls.append(1)
        cancelled.set()

    with guarded(cancel, TaskControl(60.0), 0.02, "upload"):
        assert cancelled.wait(WAIT_S)
    assert calls == [1]
    assert "upload made no progress for 0 s; cancelling it" in caplog.text


def test_a_transfer_that_moves_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = threading.Event()
    watch = StallWatch(cancelled.set, 30.0, "upload")

    class Moving:
        """Replaces the watch's wait: there is progress during each of 30 waits, then the transfer ends."""

        waits = 0

        def wait(self, seconds: float) -> bool:
            assert seconds == 30.0
            self.waits += 1
            watch.tick()
            return self.waits > 30

    monkeypatch.setattr(watch, "_done", Moving())
    watch._watch()
    assert not cancelled.is_set()


def test_abandoning_the_task_breaks_it_off() -> None:
    cancelled = threading.Event()
    control = TaskControl(60.0)
    with guarded(cancelled.set, control, 60.0, "upload"):
        control.abandon("over")
        assert cancelled.is_set()


def test_the_watch_ends_with_the_transfer() -> None:
    before = threading.active_count()
    for _ in range(20):
        with guarded(lambda: None, TaskControl(60.0), 60.0, "upload"):
            pass
    for thread in threading.enumerate():
        if thread.name == "atoll-stall-watch":
            thread.join(WAIT_S)
    assert threading.active_count() <= before
