"""What is told of runs as their events become durable: to metrics, log and traces."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atoll.server.rounds import Effect, Event, RoundKey, RunState


class StoredEvent(Protocol):
    """One event of a run that is durable."""

    @property
    def event(self) -> Event:
        """What happened."""
        ...

    @property
    def at(self) -> float:
        """When, in epoch seconds."""
        ...

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What it causes."""
        ...


class StoredEvents(Protocol):
    """Events of one run that became durable together."""

    @property
    def run(self) -> str:
        """The run's id."""
        ...

    @property
    def after(self) -> RunState:
        """The run after the events."""
        ...

    @property
    def played(self) -> Sequence[StoredEvent]:
        """All events, in order."""
        ...

    @property
    def logged(self) -> Sequence[StoredEvent]:
        """The events that changed the run, and so belong to its log."""
        ...


class Observer:
    """Hears of runs and changes nothing; its methods must not raise. This one ignores everything."""

    def stored(self, stored: StoredEvents) -> None:
        """Events of a run are durable."""

    def working(self, run: str, step: str, key: RoundKey | None, what: str) -> contextlib.AbstractContextManager[None]:
        """A step of a run is under way inside the context.

        Args:
            run: its id.
            step: such as ``fold``.
            key: the attempt at a round that the step is for; None for the run itself.
            what: which of several steps of this kind; may be empty.
        """
        del run, step, key, what
        return contextlib.nullcontext()

    def traceparent(self, run: str, key: RoundKey, participant: str) -> str:
        """W3C trace context for what a participant does for a round; empty without traces."""
        del run, key, participant
        return ""

    def retried(self, step: str) -> None:
        """Disk, database or a worker refused a step for now."""


NO_OBSERVER = Observer()
