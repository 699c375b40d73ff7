"""The interface for metrics, log and traces, which is called when events of runs have become durable."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atoll.server.rounds import Effect, Event, RoundKey, RunState


class StoredEvent(Protocol):
    """A durable event of a run."""

    @property
    def event(self) -> Event:
        """The kind of an event."""
        ...

    @property
    def at(self) -> float:
        """Epoch seconds of the event."""
        ...

    @property
    def effects(self) -> tuple[Effect, ...]:
        """The effects that it causes."""
        ...


class StoredEvents(Protocol):
    """Events of a run that became durable together."""

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
        """The events that changed the run, and therefore are in its log."""
        ...


class Observer:
    """Observes runs without changing them; its methods must not raise. This base class ignores everything."""

    def stored(self, stored: StoredEvents) -> None:
        """Called when events of a run have become durable."""

    def working(self, run: str, step: str, key: RoundKey | None, what: str) -> contextlib.AbstractContextManager[None]:
        """A context in which a step of a run is performed.

        Args:
            run: its id.
            step: such as ``fold``.
            key: the attempt at a round that the step is for; None for the run itself.
            what: distinguishes several steps of this kind; may be empty.
        """
        del run, step, key, what
        return contextlib.nullcontext()

    def traceparent(self, run: str, key: RoundKey, participant: str) -> str:
        """W3C trace context for a participant's part in a round; empty without traces."""
        del run, key, participant
        return ""

    def retried(self, step: str) -> None:
        """Called when disk, database or a worker has refused a step, which will be retried."""


NO_OBSERVER = Observer()
