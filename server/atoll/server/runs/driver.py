"""Drives one run: takes events, makes them durable, starts the work of their effects.

Every event of a run passes through ``RunDriver.post``. A single task takes all waiting events, steps the pure engine
over them, and stores the events with their records in one transaction. Only then does it start the effects' work and
answer the posters. An acknowledged event is therefore durable, and a restart that replays the log reaches the same
state.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from atoll.server.errors import ConflictError, CorruptDataError, ServerError, StorageError, UnavailableError
from atoll.server.rounds import Effect, Event, IllegalTransition, RoundError, RunState, resume, step
from atoll.server.runs.stepping import Also, Answer, Course, Entry, Played, Work, unanswered
from atoll.server.telemetry.context import remember

log = logging.getLogger(__name__)

RESTORE = "stop the server and restore the data directory from a backup; the run continues from there"
PATIENCE_S = 0.05
"""Seconds that a patient event waits for others to share its transaction."""


class RefusedEventError(ConflictError):
    """The run's state does not allow the event: it came too late, or twice."""


class Journal(Protocol):
    """Makes a run's events durable."""

    async def append(self, entry: Entry) -> None:
        """Store events, the records that their effects ask for, and what posters add, in one transaction.

        Raises:
            ServerError: if they could not be made durable. After a ``StorageError`` they may be stored nevertheless.
        """
        ...

    async def read(self, run: str, start: int) -> Sequence[tuple[Event, float]]:
        """The events of a run's log from place ``start`` on, each with the epoch second that it was stepped at.

        Raises:
            ServerError: if they cannot be read.
        """
        ...


class Performer(Protocol):
    """Performs effects; each is idempotent."""

    def perform(self, effect: Effect, state: RunState) -> Answer | Work:
        """The effect's answer if it is available at once, otherwise the work to start once the event is durable.

        ``state`` is the run after the event that caused the effect; it may not be durable yet. There are no external
        side effects before the work starts. Work never raises: its failure becomes an event.
        """
        ...

    def begin(self, effect: Effect) -> None:
        """Perform an effect of the durable state, and post its answer or start its work. Never raises.

        For effects without work from ``perform``: a restarted run waits for them, or their first attempt failed.
        """
        ...

    async def close(self) -> None:
        """Stop everything that is under way."""
        ...


@dataclass(eq=False, slots=True)
class _Posted:
    event: Event
    also: Also | None
    done: asyncio.Future[tuple[Effect, ...]]
    at: float | None = None

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
        stored: called with every entry once it is durable, including entries that are read back from the log.
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
    _patience: asyncio.TimerHandle | None = None
    _stopped: bool = False
    _unsure: bool = False
    _followed: bool = False
    _broken: ServerError | None = None

    @property
    def run(self) -> str:
        """The run's id."""
        return self.state.run_id

    @property
    def waiting(self) -> int:
        """Number of events that are not stepped yet."""
        return len(self._inbox)

    @property
    def stopped(self) -> bool:
        """Whether the run takes no more events: it has ended or broken down, or the server is stopping."""
        return self._stopped

    @property
    def broken(self) -> ServerError | None:
        """The reason why the run needs a restart, since the content of its log is unknown; empty if it does not."""
        return self._broken

    def start(self, performer: Performer) -> None:
        """Begin to take events, and restart the effects that a restarted run waits for."""
        self.performer = performer
        # in its own context, so that its log lines do not name the operator who submitted the run
        self._task = asyncio.create_task(self._play(), name=f"run {self.run}", context=contextvars.Context())
        self._begin_all(resume(self.state, self.clock()))

    async def stop(self) -> None:
        """Take no more events; refuse events that are not stored."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refuse(self._take())
        if self.performer is not None:
            await self.performer.close()
        self.changed.set()

    def post(
        self, event: Event, also: Also | None = None, *, patient: bool = False
    ) -> asyncio.Future[tuple[Effect, ...]]:
        """Post an event; the future gives its effects once the event is durable and they have begun.

        A ``patient`` event waits up to ``PATIENCE_S`` to share the transaction of an event that is not. It is stamped
        with the time of this call.

        The future fails with ``RefusedEventError`` if the run's state does not allow the event, with
        ``UnavailableError`` if the server is stopping, with the journal's error if it could not be stored, and with
        ``CorruptDataError`` if the run has broken down.
        """
        done: asyncio.Future[tuple[Effect, ...]] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_retrieved)
        posted = _Posted(event, also, done, self.clock() if patient else None)
        if self._stopped:
            self._refuse([posted])
        else:
            self._inbox.append(posted)
            if not patient:
                self._wake.set()
            elif self._patience is None:
                self._patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._wake.set)
        return done

    async def _play(self) -> None:
        """Take events until the run has ended."""
        remember(run=self.run)
        while self._inbox or not self.state.status.ended:
            await self._wake.wait()
            self._wake.clear()
            batch = self._take()
            try:
                await self._play_batch(batch)
            except asyncio.CancelledError:
                self._refuse(batch)
                raise
            except Exception as error:  # noqa: BLE001 - posters must not wait for a run that stands still
                self._break_down(batch, error)
                return
        self._stopped = True

    def _break_down(self, batch: list[_Posted], error: Exception) -> None:
        """Take no more events: the content of the log is unknown, so nothing can be added to it."""
        said = error.logged if isinstance(error, ServerError) else error
        log.error("run %s has broken down: %s", self.run, said, exc_info=error, extra={"run": self.run})
        what = error.detail.message if isinstance(error, ServerError) else f"unexpected {type(error).__name__}"
        self._broken = CorruptDataError("run.log", f"run {self.run} cannot go on: {what}", RESTORE)
        self._stopped = True
        self._refuse(batch)
        self._refuse(self._take())
        self.announce()

    async def _play_batch(self, batch: list[_Posted], *, at_once: bool = True) -> None:
        """Store all events together, with the answers of effects that have one at once.

        If that fails, store them one by one and without such answers, so that only the event at fault is refused.

        Raises:
            Exception: if the log is damaged or cannot be followed; the remaining posters still wait.
        """
        try:
            await self._catch_up()
        except (UnavailableError, StorageError) as error:
            self._refuse_for(batch, error)
            return
        try:
            await self._store(batch, at_once=at_once)
        except CorruptDataError:
            raise
        except Exception as error:  # noqa: BLE001 - the run must take further events
            self._unsure = True
            if _is_outage(error) or not (len(batch) > 1 or (at_once and self._followed)):
                self._refuse_for(batch, _as_server_error(error))
                return
            for posted in batch:
                await self._play_batch([posted], at_once=len(batch) > 1)

    def _refuse_for(self, batch: list[_Posted], error: ServerError) -> None:
        for posted in batch:
            posted.refuse(error)
        kinds = ", ".join(sorted({posted.event.kind for posted in batch}))
        log.warning("run %s: %s not stored: %s", self.run, kinds, error.logged, extra={"run": self.run})

    async def _store(self, batch: list[_Posted], *, at_once: bool) -> None:
        self._followed = False
        course = Course(self.state, self.clock, self._perform, self._begin, at_once=at_once)
        answered: list[tuple[_Posted, Played]] = []
        try:
            for posted in batch:
                try:
                    answered.append((posted, course.play(posted.event, posted.also, posted.at)))
                except RoundError as error:
                    posted.refuse(_refusal(error))
            self._followed = len(course.played) > len(answered)
            entry = Entry(self.state, course.state, self.next_seq, tuple(course.played))
            if entry.logged or any(played.also is not None for played in entry.played):
                await self.journal.append(entry)
            self.next_seq = entry.next_seq
            self.state = course.state
            self.stored(entry)
        finally:
            for cleanup in course.cleanups:
                cleanup()
        for start in course.to_do:
            start()
        for posted, played in answered:
            if not posted.done.done():
                posted.done.set_result(played.effects)
        if entry.logged:
            self.announce()

    def _perform(self, effect: Effect, state: RunState) -> Answer | Work:
        if self.performer is not None:
            try:
                return self.performer.perform(effect, state)
            except Exception as error:  # noqa: BLE001 - it is performed again later, and fails the run if it must
                log.info("run %s: %s is not answered at once: %s", self.run, type(effect).__name__, error)
        return partial(self._begin, effect)

    async def _catch_up(self) -> None:
        """Read the log after a failure that left it unknown what was stored."""
        if not self._unsure:
            return
        events, effects = await self.journal.read(self.run, self.next_seq), list[Effect]()
        for event, at in events:
            result = step(self.state, event, at)
            entry = Entry(self.state, result.state, self.next_seq, (Played(event, at, True, result.effects),))
            self.state = result.state
            self.next_seq = entry.next_seq
            self.stored(entry)
            effects += result.effects
        self._begin_all(unanswered(effects, (event for event, _ in events)))
        self._unsure = False
        self.announce()

    def _begin_all(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._begin(effect)

    def _begin(self, effect: Effect) -> None:
        if self.performer is not None:
            self.performer.begin(effect)

    def _take(self) -> list[_Posted]:
        batch, self._inbox = self._inbox, []
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        return batch

    def _refuse(self, batch: list[_Posted]) -> None:
        error: ServerError
        if self._broken is not None:
            error = self._broken
        elif self.state.status.ended:
            error = RefusedEventError("run.ended", f"run {self.run} has {self.state.status}")
        else:
            error = UnavailableError("server.stopping", "the server is stopping", "try again", retry_after_s=1.0)
        for posted in batch:
            posted.refuse(error)

    def announce(self) -> None:
        """Wake the watchers of the run."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.moved(self)


def _refusal(error: RoundError) -> ServerError:
    if isinstance(error, IllegalTransition):
        return RefusedEventError("run.state", str(error))
    return CorruptDataError("run.state", str(error), "the run cannot continue; see the server's log")


def _is_outage(error: Exception) -> bool:
    """Whether the error is the database's or the disk's rather than an event's."""
    return isinstance(error, UnavailableError | StorageError) and error.detail.retry_after_s is not None


def _as_server_error(error: Exception) -> ServerError:
    if isinstance(error, ServerError):
        return error
    log.error("an event could not be stored", exc_info=error)
    return StorageError("run.store", f"the event could not be stored: {type(error).__name__}")


def _retrieved(future: asyncio.Future[tuple[Effect, ...]]) -> None:
    """Mark the exception as retrieved: posters may ignore it, and it is logged where it happens."""
    if not future.cancelled():
        future.exception()
