"""Cancel a transfer that makes no progress, or whose task is abandoned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.client.control import TaskControl

log = logging.getLogger("atoll.client")


class StallWatch:
    """Calls ``cancel`` once if ``tick`` is not called for ``stall_s`` (detected within twice that time)."""

    def __init__(self, cancel: Callable[[], object], stall_s: float, what: str) -> None:
        self._cancel = cancel
        self._stall_s = stall_s
        self._what = what
        self._ticks = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="atoll-stall-watch", daemon=True)

    def tick(self) -> None:
        """Record progress."""
        self._ticks += 1

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._done.set()

    def _watch(self) -> None:
        seen = -1
        while not self._done.wait(self._stall_s):
            if seen == self._ticks:
                log.warning("%s made no progress for %.0f s; cancelling it", self._what, self._stall_s)
                self._cancel()
                return
            seen = self._ticks


@contextmanager
def guarded(
    cancel: Callable[[], object], control: TaskControl, stall_s: float, what: str
) -> Iterator[Callable[[], None]]:
    """Call ``cancel`` on a stall, or when the task is abandoned; yields the function to call on progress."""
    watch = StallWatch(cancel, stall_s, what)
    watch.start()
    try:
        with control.on_abandon(cancel):
            yield watch.tick
    finally:
        watch.stop()
