"""Steps the engine over events that are not durable yet, and collects what must be stored and done for them.

Some effects have an immediate answer, without waiting and without external side effects: the charge for a finished sum,
or a draw when enough participants are connected. Such an answer is stepped right after the event that caused the
effect, so that one transaction holds the whole chain: a round's sum, its charge and model, and the opening of the next
round. If that transaction fails, none of it has happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
"""Begins an effect; called once the event that caused it is durable. The effect's answer comes later, as an event."""


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
        answer: returns the immediate answer of an effect of this state, or None.
        played: the events so far.
        to_do: the effects that none of these events answers, in order.
        cleanups: called once the events are stored or given up.
    """

    state: RunState
    clock: Callable[[], float]
    answer: Callable[[Effect, RunState], Answer | None]
    played: list[Played] = field(default_factory=list)
    to_do: list[Effect] = field(default_factory=list)
    cleanups: list[Callable[[], None]] = field(default_factory=list)

    def play(self, event: Event, also: Also | None = None, at: float | None = None) -> Played:
        """Step an event that happened ``at`` (None: now), then the immediate answers of its effects, and of theirs.

        Raises:
            RoundError: if the run's state does not allow the event; nothing has happened then.
        """
        now = self.clock() if at is None else at
        result = step(self.state, event, now)
        played = Played(event, now, result.state is not self.state, result.effects, also)
        self.state = result.state
        self.played.append(played)
        for effect in result.effects:
            if not (played.changed and self._answered(effect)):
                self.to_do.append(effect)
        return played

    def _answered(self, effect: Effect) -> bool:
        answer = self.answer(effect, self.state)
        if answer is None:
            return False
        self.cleanups.append(answer.cleanup)
        try:
            self.play(answer.event, answer.also)
        except RoundError as error:  # the effect is performed again after the transaction, where an error counts
            log.info("run %s: %s does not follow at once: %s", self.state.run_id, answer.event.kind, error)
            return False
        return True


def unanswered(effects: Iterable[Effect], events: Iterable[Event]) -> list[Effect]:
    """The effects that none of these later events answers."""
    answers = {(type(event), getattr(event, "key", None)) for event in events}
    return [one for one in effects if (_ANSWERS.get(type(one)), getattr(one, "key", None)) not in answers]
