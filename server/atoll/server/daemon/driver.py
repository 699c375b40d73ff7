"""One run: events in, made durable, effects out.

Everything that happens to a run passes through ``RunDriver.post``. A single task takes all events that wait, steps the
pure engine over them, and stores the events with what they record in one transaction; only then are the effects done
and the posters told. So what was acknowledged is durable, and a restart that replays the log stands where it stood.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import Connection

from atoll.server.errors import ConflictError, ServerError
from atoll.server.rounds import (
    Effect,
    Event,
    IllegalTransition,
    RunState,
    resume,
    step,
)

log = logging.getLogger(__name__)

Also = Callable[[Connection, tuple[Effect, ...]], None]
"""Something to store in the transaction of an event, given the effects that the event has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a run stores at once.

    Attributes:
        run: the run.
        first_seq: the place of the first event in the run's log.
        events: those that changed the run, with the epoch second that each was stepped at.
        state: the run after them.
        effects: everything that they caused.
        also: what posters add, each with the effects of its event.
    """

    run: str
    first_seq: int
    events: tuple[tuple[Event, float], ...]
    state: RunState
    effects: tuple[Effect, ...]
    also: tuple[tuple[Also, tuple[Effect, ...]], ...]


class Journal(Protocol):
    """Where a run's events become durable."""

    async def append(self, entry: Entry) -> None:
        """Store events, the records that their effects ask for, and what posters add, in one transaction.

        Raises:
            ServerError: if it could not be made durable; nothing was stored.
        """
        ...


class Performer(Protocol):
    """Does effects; each may be asked for again and then changes nothing more."""

    def perform(self, effect: Effect) -> None:
        """Begin an effect; its answer comes as an event."""
        ...

    def close(self) -> None:
        """Stop everything that is under way."""
        ...


@dataclass(eq=False, slots=True)
class _Posted:
    event: Event
    also: Also | None
    done: asyncio.Future[tuple[Effect, ...]]


@dataclass(eq=False)
class RunDriver:
    """Drives one run; made by the coordinator.

    Attributes:
        state: the run, as of the last durable event.
        moved: called after every durable change.
        changed: set, and replaced, at every change; watchers wait on it.
    """

    state: RunState
    next_seq: int
    journal: Journal
    clock: Callable[[], float]
    moved: Callable[[RunDriver], None]
    performer: Performer | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _inbox: list[_Posted] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    @property
    def run(self) -> str:
        """The run's id."""
        return self.state.run_id

    def start(self, performer: Performer) -> None:
        """Begin to take events, and do again what a restarted run is waiting for."""
        self.performer = performer
        self._task = asyncio.create_task(self._play(), name=f"run {self.run}")
        for effect in resume(self.state, self.clock()):
            performer.perform(effect)

    async def stop(self) -> None:
        """Take no more events; what was posted but not stored is refused."""
        if self.performer is not None:
            self.performer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for posted in self._inbox:
            posted.done.cancel()

    def post(self, event: Event, also: Also | None = None) -> asyncio.Future[tuple[Effect, ...]]:
        """Hand in an event; the future gives its effects once it is durable and they are begun.

        The future fails with ``ConflictError`` if the run's state does not allow the event, and with the journal's
        error if it could not be stored.
        """
        done: asyncio.Future[tuple[Effect, ...]] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieved)
        self._inbox.append(_Posted(event, also, done))
        self._wake.set()
        return done

    async def _play(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._inbox = self._inbox, []
            try:
                await self._play_batch(batch)
            except ServerError as error:
                log.exception("run %s: events not stored", self.run, extra={"run": self.run})
                for posted in batch:
                    if not posted.done.done():
                        posted.done.set_exception(error)

    async def _play_batch(self, batch: list[_Posted]) -> None:
        state = self.state
        stored: list[tuple[Event, float]] = []
        outcomes: list[tuple[_Posted, tuple[Effect, ...]]] = []
        for posted in batch:
            now = self.clock()
            try:
                result = step(state, posted.event, now)
            except IllegalTransition as error:
                posted.done.set_exception(ConflictError("run.state", str(error)))
                continue
            if result.state is not state:
                stored.append((posted.event, now))
            state = result.state
            outcomes.append((posted, result.effects))
        await self._store(state, stored, outcomes)
        self.next_seq += len(stored)
        self.state = state
        for posted, caused in outcomes:
            self._begin(caused)
            if not posted.done.done():
                posted.done.set_result(caused)
        if stored:
            self._announce()

    async def _store(
        self,
        state: RunState,
        stored: list[tuple[Event, float]],
        outcomes: list[tuple[_Posted, tuple[Effect, ...]]],
    ) -> None:
        also = tuple((posted.also, caused) for posted, caused in outcomes if posted.also is not None)
        if stored or also:
            effects = tuple(effect for _, caused in outcomes for effect in caused)
            await self.journal.append(Entry(self.run, self.next_seq, tuple(stored), state, effects, also))

    def _begin(self, effects: tuple[Effect, ...]) -> None:
        if self.performer is not None:
            for effect in effects:
                self.performer.perform(effect)

    def _announce(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
        self.moved(self)


def _retrieved(future: asyncio.Future[tuple[Effect, ...]]) -> None:
    """Posters may not care; their failures are logged where they happen."""
    if not future.cancelled():
        future.exception()
