"""Steps the engine over events that are not durable yet, and collects what must be stored and done for them.

Performing an effect gives an answer at once, or work to start later. An answer needs no waiting and has no external
side effects: the charge for a finished sum, or a draw when enough participants are connected. It is stepped right after
the event that caused the effect, so that one transaction holds the whole chain: a round's sum, its charge and model,
and the opening of the next round. If that transaction fails, none of it has happened. Work starts once the transaction
is stored; it posts its answer as an event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection

from atoll.server.rounds import (
    Aggregate,
    Aggregated,
    ChargeAndStore,
    Charged,
    CohortDrawn,
    DrawCohort,
    Effect,
    Event,
    PrepareRound,
    Publish,
    Published,
    RetryDue,
    RoundError,
    RoundPrepared,
    RunState,
    StartRetry,
    step,
)

log = logging.getLogger(__name__)

Also = Callable[[Connection, tuple[Effect, ...]], None]
"""Stores something in the transaction of an event, given the event's effects."""

_ANSWERS: dict[type[Effect], type[Event]] = {
    DrawCohort: CohortDrawn,
    PrepareRound: RoundPrepared,
    Aggregate: Aggregated,
    ChargeAndStore: Charged,
    Publish: Published,
    StartRetry: RetryDue,
}


@dataclass(frozen=True, slots=True)
class Played:
    """One event as it was stepped.

    Attributes:
        event: what happened.
        at: the epoch second that it was stepped at.
        changed: whether it changed the run and therefore belongs in its log.
        effects: what it causes.
        also: what the poster wants stored with it.
    """

    event: Event
    at: float
    changed: bool
    effects: tuple[Effect, ...]
    also: Also | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The event that answers an effect at once.

    Attributes:
        event: the answer.
        also: what is to be stored with it.
        cleanup: called once the answer is stored or given up.
    """

    event: Event
    also: Also | None = None
    cleanup: Callable[[], None] = lambda: None


Work = Callable[[], None]
"""Starts the work of an effect, once the event that caused it is durable. Its answer comes later, as an event."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The batch that a run stores in one transaction.

    Attributes:
        before: the run before the events.
        after: the run after them.
        first_seq: the sequence number of the first event that changed the run.
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
        """The sequence number of the first event after these."""
        return self.first_seq + len(self.logged)

    @property
    def logged(self) -> tuple[Played, ...]:
        """The events that belong to the log."""
        return tuple(played for played in self.played if played.changed)


@dataclass(eq=False, slots=True)
class Course:
    """Steps events one after another, starting from a durable state.

    Attributes:
        state: the run after the events so far.
        clock: epoch seconds.
        perform: performs an effect of this state.
        begin: performs an effect of the durable state.
        at_once: whether effects are performed now; if not, ``begin`` performs them once the events are stored.
        played: the events so far.
        to_do: the work of the effects that none of these events answers, in order; to start once they are stored.
        cleanups: called once the events are stored or given up.
    """

    state: RunState
    clock: Callable[[], float]
    perform: Callable[[Effect, RunState], Answer | Work]
    begin: Callable[[Effect], None]
    at_once: bool
    played: list[Played] = field(default_factory=list)
    to_do: list[Work] = field(default_factory=list)
    cleanups: list[Callable[[], None]] = field(default_factory=list)

    def play(self, event: Event, also: Also | None = None, at: float | None = None) -> Played:
        """Step an event of time ``at`` (None: now), then the immediate answers of its effects, and of their effects.

        Raises:
            RoundError: if the run's state does not allow the event; nothing has happened then.
        """
        now = self.clock() if at is None else at
        result = step(self.state, event, now)
        played = Played(event, now, result.state is not self.state, result.effects, also)
        self.state = result.state
        self.played.append(played)
        for effect in result.effects:
            work = self._performed(effect) if played.changed and self.at_once else partial(self.begin, effect)
            if work is not None:
                self.to_do.append(work)
        return played

    def _performed(self, effect: Effect) -> Work | None:
        """Step the effect's answer and return None, or return the work that will answer it."""
        made = self.perform(effect, self.state)
        if not isinstance(made, Answer):
            return made
        self.cleanups.append(made.cleanup)
        try:
            self.play(made.event, made.also)
        except RoundError as error:  # the effect is performed again after the transaction, where an error counts
            log.info("run %s: %s does not follow at once: %s", self.state.run_id, made.event.kind, error)
            return partial(self.begin, effect)
        return None


def unanswered(effects: Iterable[Effect], events: Iterable[Event]) -> list[Effect]:
    """The effects that none of these later events answers."""
    answers = {(type(event), getattr(event, "key", None)) for event in events}
    return [one for one in effects if (_ANSWERS.get(type(one)), getattr(one, "key", None)) not in answers]
