"""Stop signals of a task: finish and report (stop), or drop the result (abandon)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from atoll.client._clock import now_s

_TIMER_SLACK_S = 0.05
"""A timer that fires at most this early is accepted; an earlier one belongs to a deadline that was extended since."""


class TaskControl:
    """Deadline and stop signals of one task; thread-safe.

    ``stop`` asks the trainer to finish soon and report what it has. ``abandon`` also drops the result and cancels
    transfers. Deadlines are relative: seconds from now.
    """

    def __init__(self, remaining_s: float) -> None:
        self.stop_event = threading.Event()
        self.abandoned = threading.Event()
        self.reporting = threading.Event()
        """Set once the report is sent: the server may count it before its answer arrives."""
        self.reason = ""
        self.reserve_s = 0.0
        self._deadline_s = now_s() + remaining_s
        self._lock = threading.Lock()
        self._timing = threading.RLock()
        """Held while deadline and timer are changed: the server may send a new deadline while work is begun."""
        self._stop_watchers: list[Callable[[], object]] = []
        self._abandon_watchers: list[Callable[[], object]] = []
        self._timer: threading.Timer | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds to the deadline; negative after it."""
        return self._deadline_s - now_s()

    @property
    def should_stop(self) -> bool:
        """Whether training should end: it was stopped, or only the time to send the update is left."""
        return self.stop_event.is_set() or self.remaining_s <= self.reserve_s

    def extend(self, remaining_s: float) -> None:
        """Set a new deadline, in seconds from now."""
        with self._timing:
            self._deadline_s = now_s() + remaining_s
            if self._timer is not None:
                self.arm(self.reserve_s)

    def arm(self, reserve_s: float) -> None:
        """Call ``stop`` when only ``reserve_s`` is left to the deadline."""
        with self._timing:
            self.disarm()
            self.reserve_s = reserve_s
            self._timer = threading.Timer(max(0.0, self.remaining_s - reserve_s), self._at_reserve)
            self._timer.daemon = True
            self._timer.start()

    def disarm(self) -> None:
        """Do not call ``stop`` at the deadline."""
        with self._timing:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def stop(self, reason: str) -> None:
        """Ask the trainer to finish and report; the first reason is kept."""
        with self._lock:
            self.reason = self.reason or reason
            self.stop_event.set()
            watchers = tuple(self._stop_watchers)
        for watcher in watchers:
            watcher()

    def abandon(self, reason: str) -> None:
        """Drop the work: stop the trainer, cancel transfers, send nothing."""
        with self._lock:
            self.reason = self.reason or reason
            self.abandoned.set()  # before the trainer stops, so that a result that it returns at once is dropped too
            watchers = tuple(self._abandon_watchers)
        self.stop(reason)
        for watcher in watchers:
            watcher()

    @contextmanager
    def on_stop(self, watcher: Callable[[], object]) -> Iterator[None]:
        """While inside, ``stop`` and ``abandon`` call ``watcher``; called at once if one of them was called before."""
        with self._watching(self._stop_watchers, watcher, self.stop_event):
            yield

    @contextmanager
    def on_abandon(self, watcher: Callable[[], object]) -> Iterator[None]:
        """While inside, ``abandon`` calls ``watcher``; called at once if the work is abandoned already."""
        with self._watching(self._abandon_watchers, watcher, self.abandoned):
            yield

    @contextmanager
    def _watching(
        self, watchers: list[Callable[[], object]], watcher: Callable[[], object], happened: threading.Event
    ) -> Iterator[None]:
        with self._lock:
            watchers.append(watcher)
            late = happened.is_set()
        if late:
            watcher()
        try:
            yield
        finally:
            with self._lock:
                watchers.remove(watcher)

    def _at_reserve(self) -> None:
        if self.remaining_s <= self.reserve_s + _TIMER_SLACK_S:
            self.stop("the deadline is near")
