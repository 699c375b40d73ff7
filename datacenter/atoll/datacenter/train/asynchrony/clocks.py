"""Stale synchronous parallel (Ho et al. 2013, section 2): limits how far workers may run ahead of each other.

A worker's clock is the number of updates that it has pushed. It may read and begin the next update only while

    own clock - clock of the slowest worker <= staleness

It therefore sees all updates of clocks below (own clock - staleness). Staleness 0 is synchronous training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from atoll.datacenter.errors import TrainingError


class Clocks:
    """Clocks of all workers; thread-safe.

    Attributes:
        max_lead: largest lead with which a worker has read.

    Args:
        workers: number of workers.
        staleness: the bound, at least 0.
    """

    def __init__(self, workers: int, staleness: int) -> None:
        self.staleness = staleness
        self.max_lead = 0
        self._clocks = [0] * workers
        self._left: set[int] = set()
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def lead(self, worker: int) -> int:
        """Return how many clocks a worker is ahead of the slowest."""
        return self._clocks[worker] - min(self._running, default=self._clocks[worker])

    @property
    def _running(self) -> list[int]:
        return [clock for worker, clock in enumerate(self._clocks) if worker not in self._left]

    def wait_to_read(self, worker: int, timeout_s: float) -> int:
        """Wait until a worker may read.

        Returns:
            Its lead, at most ``staleness``.

        Raises:
            TrainingError: if the slowest worker does not advance in time, naming it, or another worker was lost.
        """
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._failure or self.lead(worker) <= self.staleness, timeout_s)
            if self._failure is not None:
                raise TrainingError(f"worker {worker} stopped: {self._failure}") from self._failure
            if not in_time:
                slowest = self._clocks.index(min(self._running))
                raise TrainingError(
                    f"worker {worker} at clock {self._clocks[worker]} has waited {timeout_s:g} s for worker {slowest} "
                    f"at clock {self._clocks[slowest]}, with staleness {self.staleness}: set asynchrony.staleness or "
                    "faults.collective_timeout_s higher, or find out why that worker hangs"
                )
            self.max_lead = max(self.max_lead, self.lead(worker))
            return self.lead(worker)

    def advance(self, worker: int, apply: Callable[[int], None]) -> None:
        """Advance a worker's clock after its push.

        Args:
            worker: number of the worker.
            apply: called with the clock before the advance becomes visible.
        """
        with self._changed:
            apply(self._clocks[worker])
            self._clocks[worker] += 1
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """Remove a worker that is done, so that no other worker waits for it."""
        with self._changed:
            self._left.add(worker)
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Make all waiting and later reads fail, because a worker was lost. The first failure counts."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def clock(self, worker: int) -> int:
        """Return the number of updates that a worker has pushed."""
        return self._clocks[worker]
