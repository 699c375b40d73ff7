"""One run: events in, made durable, effects out.

Everything that happens to a run passes through ``RunDriver.post``. A single task takes all events that wait, steps the
pure engine over them, and stores the events with what they record in one transaction; only then are the effects done
and the posters told. So what was acknowledged is durable, and a restart that replays the log stands where it stood.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import Connection

from atoll.server.errors import ConflictError, CorruptDataError, ServerError, StorageError, UnavailableError
from atoll.server.rounds import Effect, Event, IllegalTransition, RoundError, RunState, resume, step

log = logging.getLogger(__name__)

Also = Callable[[Connection, tuple[Effect, ...]], None]
"""Something to store in the transaction of an event, given the effects that the event has."""


class RefusedEventError(ConflictError):
    """The run's state does not allow the event, now or ever: it came too late, or twice."""


@dataclass(frozen=True, slots=True)
class Played:
    """One event as it was stepped.

    Attributes:
        event: what happened.
        at: the epoch second that it was stepped at.
        changed: whether it changed the run, and so belongs to its log.
        effects: what it causes.
        also: what the poster wants to be stored with it.
    """

    event: Event
    at: float
    changed: bool
    effects: tuple[Effect, ...]
    also: Also | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a run stores at once.

    Attributes:
        before: the run before the events.
        after: the run after them.
        first_seq: the place in the run's log of the first event that changed it.
        played: the events in order.
    """

    before: RunState
    after: RunState
    first_seq: int
    played: tuple[Played, ...]

    @property
    def run(self) -> str:
        """The run's id."""
        return self.after.run_id

    @property
    def next_seq(self) -> int:
        """The place of the first event after these."""
        return self.first_seq + len(self.logged)

    @property
    def logged(self) -> tuple[Played, ...]:
        """The events that belong to the log."""
        return tuple(played for played in self.played if played.changed)


class Journal(Protocol):
    """Where a run's events become durable."""

    async def append(self, entry: Entry) -> None:
        """Store events, the records that their effects ask for, and what posters add, in one transaction.

        Raises:
            ServerError: if it could not be made durable. Nothing was stored; after a ``StorageError`` that is not sure.
        """
        ...

    async def read(self, run: str, start: int) -> Sequence[tuple[Event, float]]:
        """The events of a run's log from place ``start`` on, each with the epoch second that it was stepped at.

        Raises:
            ServerError: if they cannot be read.
        """
        ...


class Performer(Protocol):
    """Does effects; each may be asked for again and then changes nothing more."""

    def perform(self, effect: Effect) -> None:
        """Begin an effect; its answer comes as an event."""
        ...

    async def close(self) -> None:
        """Stop everything that is under way."""
        ...


@dataclass(eq=False, slots=True)
class _Posted:
    event: Event
    also: Also | None
    done: asyncio.Future[tuple[Effect, ...]]

    def refuse(self, error: ServerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass(eq=False)
class RunDriver:
    """Drives one run; made by the coordinator.

    Attributes:
        state: the run, as of the last durable event.
        next_seq: the place of the next event in the run's log.
        moved: called after every durable change.
        stored: told of every entry once it is durable, also of one that is read back from the log.
        changed: set, and replaced, at every change; watchers wait on it.
    """

    state: RunState
    next_seq: int
    journal: Journal
    clock: Callable[[], float]
    moved: Callable[[RunDriver], None]
    stored: Callable[[Entry], None] = lambda _: None
    performer: Performer | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _inbox: list[_Posted] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None
    _stopped: bool = False
    _unsure: bool = False

    @property
    def run(self) -> str:
        """The run's id."""
        return self.state.run_id

    @property
    def waiting(self) -> int:
        """Events that are not stepped yet."""
        return len(self._inbox)

    @property
    def stopped(self) -> bool:
        """Whether no further event is taken: the run has ended, or the server is stopping."""
        return self._stopped

    def start(self, performer: Performer) -> None:
        """Begin to take events, and do again what a restarted run is waiting for."""
        self.performer = performer
        self._task = asyncio.create_task(self._play(), name=f"run {self.run}")
        self._begin(resume(self.state, self.clock()))

    async def stop(self) -> None:
        """Take no more events; what was posted but not stored is refused."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refuse(self._take())
        if self.performer is not None:
            await self.performer.close()
        self.changed.set()

    def post(self, event: Event, also: Also | None = None) -> asyncio.Future[tuple[Effect, ...]]:
        """Hand in an event; the future gives its effects once it is durable and they are begun.

        The future fails with ``RefusedEventError`` if the run's state does not allow the event, with
        ``UnavailableError`` if the server is stopping, and with the journal's error if it could not be stored.
        """
        done: asyncio.Future[tuple[Effect, ...]] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieved)
        posted = _Posted(event, also, done)
        if self._stopped:
            self._refuse([posted])
        else:
            self._inbox.append(posted)
            self._wake.set()
        return done

    async def _play(self) -> None:
        """Take events until the run has ended: whatever comes after that cannot change it any more."""
        while self._inbox or not self.state.status.ended:
            await self._wake.wait()
            self._wake.clear()
            batch = self._take()
            try:
                await self._play_batch(batch)
            except asyncio.CancelledError:
                self._refuse(batch)
                raise
        self._stopped = True

    async def _play_batch(self, batch: list[_Posted]) -> None:
        """Store all events together; if one of them cannot be stored, one by one, so that only that one is refused."""
        try:
            await self._catch_up()
            await self._store(batch)
        except Exception as error:  # noqa: BLE001 - whatever the journal raises, the run must take further events
            self._unsure = True
            if len(batch) > 1 and not _is_outage(error):
                for posted in batch:
                    await self._play_batch([posted])
                return
            failure = _as_server_error(error)
            for posted in batch:
                posted.refuse(failure)
            kinds = ", ".join(sorted({posted.event.kind for posted in batch}))
            log.warning("run %s: %s not stored: %s", self.run, kinds, failure, extra={"run": self.run})

    async def _store(self, batch: list[_Posted]) -> None:
        state, outcomes = self.state, []
        for posted in batch:
            now = self.clock()
            try:
                result = step(state, posted.event, now)
            except RoundError as error:
                posted.refuse(_refusal(error))
                continue
            played = Played(posted.event, now, result.state is not state, result.effects, posted.also)
            state = result.state
            outcomes.append((posted, played))
        entry = Entry(self.state, state, self.next_seq, tuple(played for _, played in outcomes))
        if entry.logged or any(played.also is not None for played in entry.played):
            await self.journal.append(entry)
        self.next_seq = entry.next_seq
        self.state = state
        self.stored(entry)
        for posted, played in outcomes:
            self._begin(played.effects)
            if not posted.done.done():
                posted.done.set_result(played.effects)
        if entry.logged:
            self.announce()

    async def _catch_up(self) -> None:
        """After a failure that left open what was stored: take from the log what was."""
        if not self._unsure:
            return
        for event, at in await self.journal.read(self.run, self.next_seq):
            result = step(self.state, event, at)
            entry = Entry(self.state, result.state, self.next_seq, (Played(event, at, True, result.effects),))
            self.state = result.state
            self.next_seq = entry.next_seq
            self.stored(entry)
            self._begin(result.effects)
        self._unsure = False
        self.announce()

    def _begin(self, effects: tuple[Effect, ...]) -> None:
        if self.performer is not None:
            for effect in effects:
                self.performer.perform(effect)

    def _take(self) -> list[_Posted]:
        batch, self._inbox = self._inbox, []
        return batch

    def _refuse(self, batch: list[_Posted]) -> None:
        if self.state.status.ended:
            error: ServerError = RefusedEventError("run.ended", f"run {self.run} has {self.state.status}")
        else:
            error = UnavailableError("server.stopping", "the server is stopping", "try again", retry_after_s=1.0)
        for posted in batch:
            posted.refuse(error)

    def announce(self) -> None:
        """Tell those who watch that there is something new to see."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.moved(self)


def _refusal(error: RoundError) -> ServerError:
    if isinstance(error, IllegalTransition):
        return RefusedEventError("run.state", str(error))
    return CorruptDataError("run.state", str(error), "the run cannot go on from here; see the server's log")


def _is_outage(error: Exception) -> bool:
    """Whether database or disk are at fault, and not one of the events."""
    return isinstance(error, UnavailableError | StorageError) and error.detail.retry_after_s is not None


def _as_server_error(error: Exception) -> ServerError:
    if isinstance(error, ServerError):
        return error
    log.error("an event could not be stored", exc_info=error)
    return StorageError("run.store", f"the event could not be stored: {type(error).__name__}")


def _retrieved(future: asyncio.Future[tuple[Effect, ...]]) -> None:
    """Posters may not care; their failures are logged where they happen."""
    if not future.cancelled():
        future.exception()
