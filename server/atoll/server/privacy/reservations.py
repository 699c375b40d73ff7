"""Reserved costs of live rounds: counted before they are charged, so that two runs cannot spend the same budget.

A round reserves first and is then checked together with other reservations: of two concurrent rounds, either both fit
or at least one is refused. Reservations are in memory; after a restart each live round reserves again.
"""

from __future__ import annotations

import threading

from atoll.server.privacy.events import Event


class Reservations:
    """The live rounds of all runs of one server, at most one per run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, Event | None]] = {}

    def hold(self, population: str, run_id: str, event: Event | None) -> tuple[Event, ...]:
        """Reserve a round's cost, replacing the run's earlier reservation; returns the reservations of other runs."""
        with self._lock:
            self._held[run_id] = (population, event)
            return tuple(
                other
                for name, (of, other) in self._held.items()
                if of == population and name != run_id and other is not None
            )

    def release(self, run_id: str) -> None:
        """Release the run's reservation: its round was charged, or never will be."""
        with self._lock:
            self._held.pop(run_id, None)
