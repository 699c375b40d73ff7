"""Reserved costs of rounds in work: counted before they are charged, so that no two runs take the last of a budget.

A round reserves first and is then checked with what others have reserved: if two come at once, either both fit or at
least one is refused. Reservations are in memory; after a restart each round under way reserves again.
"""

from __future__ import annotations

import threading

from atoll.server.privacy.events import Event


class Reservations:
    """The rounds under way of every run of one server: at most one per run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, Event | None]] = {}

    def hold(self, population: str, run_id: str, event: Event | None) -> tuple[Event, ...]:
        """Reserve a round's cost, in place of the run's earlier reservation; returns the reservations of other runs."""
        with self._lock:
            self._held[run_id] = (population, event)
            return tuple(
                other
                for name, (of, other) in self._held.items()
                if of == population and name != run_id and other is not None
            )

    def release(self, run_id: str) -> None:
        """The run's round was charged, or never will be."""
        with self._lock:
            self._held.pop(run_id, None)
