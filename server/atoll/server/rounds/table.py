"""The transition table: what each event does, by the situation that the run is in.

`TABLE` holds the moves: an entry names the handler and the situations that it may lead to (staying is always allowed).
`IGNORED` holds the events that have no effect in a situation: repetitions, and messages that arrive too late to matter.
`engine.step` refuses an event that is in neither, and a handler that leads to a situation which its entry does not
list.

A round's phase `RELEASED` is not a situation: publishing a round begins the next one, pauses the run or ends it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atoll.server.rounds import late_reports, member_events, opening, operator_events, publication
from atoll.server.rounds.events import (
    Accepted,
    Aggregated,
    BudgetSpent,
    CancelRequested,
    Charged,
    CohortDrawn,
    DeadlinePassed,
    Declined,
    EffectFailed,
    ExtendRequested,
    MemberFailed,
    PauseRequested,
    Published,
    Rejected,
    Reported,
    ResumeRequested,
    RetryDue,
    RoundPrepared,
    Started,
    SumLost,
    WentSilent,
)
from atoll.server.rounds.run_state import RunState
from atoll.server.rounds.step import Step


class Situation(StrEnum):
    """A row of the table: where the run stands, or PAST for an event about a round before the live one."""

    NEW = "new"
    CREATED = "created"
    SAMPLED = "sampled"
    OPEN = "open"
    CLOSING = "closing"
    AGGREGATED = "aggregated"
    CHARGED = "charged"
    ABANDONED = "abandoned"
    PAUSED = "paused"
    ENDED = "ended"
    PAST = "past"


# The table's key determines the event's type, which a type checker cannot follow through a mapping.
Handler = Callable[[RunState, Any, float], Step]


@dataclass(frozen=True, slots=True)
class Move:
    """An entry: the handler of an event in a situation, and the situations that it may lead to."""

    handler: Handler
    to: tuple[Situation, ...] = ()


NEW = Situation.NEW
CREATED = Situation.CREATED
SAMPLED = Situation.SAMPLED
OPEN = Situation.OPEN
CLOSING = Situation.CLOSING
AGGREGATED = Situation.AGGREGATED
CHARGED = Situation.CHARGED
ABANDONED = Situation.ABANDONED
PAUSED = Situation.PAUSED
ENDED = Situation.ENDED
PAST = Situation.PAST

# An abandoned attempt is tried again, unless a pause was requested or no attempt is left. When no attempt is left, a
# train round fails the run; an evaluation is skipped, which leads to the next round or to the end.
GIVEN_UP = (ABANDONED, CREATED, PAUSED, ENDED)

PAUSE_LATER = Move(operator_events.on_pause_later)
PAUSE_NOW = Move(operator_events.on_pause_now, (PAUSED,))
RESUME_EARLY = Move(operator_events.on_resume_early)
CANCEL = Move(operator_events.on_cancel, (ENDED,))
FAIL = Move(operator_events.on_effect_failed, (ENDED,))
UNPAID = Move(operator_events.on_budget_spent, (PAUSED,))
TURN_AWAY = Move(late_reports.on_accepted)
LATE_REPORT = Move(late_reports.on_reported)
LATE_REJECTION = Move(late_reports.on_rejected)

TABLE: dict[tuple[Situation, type], Move] = {
    # submitted, not begun
    (NEW, Started): Move(opening.on_started, (CREATED, PAUSED)),
    (NEW, PauseRequested): PAUSE_LATER,
    (NEW, ResumeRequested): RESUME_EARLY,
    (NEW, CancelRequested): CANCEL,
    # waiting for a cohort
    (CREATED, CohortDrawn): Move(opening.on_cohort_drawn, (SAMPLED, ABANDONED, CREATED, ENDED)),
    (CREATED, PauseRequested): PAUSE_NOW,
    (CREATED, CancelRequested): CANCEL,
    (CREATED, EffectFailed): FAIL,
    (CREATED, BudgetSpent): UNPAID,
    # waiting for the grid and the window
    (SAMPLED, RoundPrepared): Move(opening.on_round_prepared, (OPEN, CLOSING)),
    (SAMPLED, Rejected): Move(member_events.on_rejected, (ABANDONED, PAUSED, ENDED)),
    (SAMPLED, PauseRequested): PAUSE_LATER,
    (SAMPLED, ResumeRequested): RESUME_EARLY,
    (SAMPLED, CancelRequested): CANCEL,
    (SAMPLED, EffectFailed): FAIL,
    # members at work
    (OPEN, Accepted): Move(member_events.on_accepted),
    (OPEN, Declined): Move(member_events.on_declined, (CLOSING, *GIVEN_UP)),
    (OPEN, MemberFailed): Move(member_events.on_member_failed, (CLOSING, *GIVEN_UP)),
    (OPEN, WentSilent): Move(member_events.on_went_silent, (CLOSING,)),
    (OPEN, Reported): Move(member_events.on_reported, (CLOSING, *GIVEN_UP)),
    (OPEN, Rejected): Move(member_events.on_rejected, (CLOSING, *GIVEN_UP)),
    (OPEN, DeadlinePassed): Move(member_events.on_deadline, (CLOSING, *GIVEN_UP)),
    (OPEN, PauseRequested): PAUSE_LATER,
    (OPEN, ResumeRequested): RESUME_EARLY,
    (OPEN, CancelRequested): CANCEL,
    (OPEN, EffectFailed): FAIL,
    # the set is fixed and being summed
    (CLOSING, Aggregated): Move(publication.on_aggregated, (AGGREGATED,)),
    (CLOSING, Accepted): TURN_AWAY,
    (CLOSING, Reported): LATE_REPORT,
    (CLOSING, Rejected): Move(member_events.on_rejected_closing, GIVEN_UP),
    (CLOSING, PauseRequested): PAUSE_LATER,
    (CLOSING, ResumeRequested): RESUME_EARLY,
    (CLOSING, CancelRequested): CANCEL,
    (CLOSING, EffectFailed): FAIL,
    # the sum is taken and being charged
    (AGGREGATED, Charged): Move(publication.on_charged, (CHARGED,)),
    (AGGREGATED, Aggregated): Move(publication.on_aggregated_again),
    (AGGREGATED, Accepted): TURN_AWAY,
    (AGGREGATED, Reported): LATE_REPORT,
    (AGGREGATED, Rejected): LATE_REJECTION,
    (AGGREGATED, PauseRequested): PAUSE_LATER,
    (AGGREGATED, ResumeRequested): RESUME_EARLY,
    (AGGREGATED, CancelRequested): CANCEL,
    (AGGREGATED, EffectFailed): FAIL,
    (AGGREGATED, BudgetSpent): UNPAID,
    (AGGREGATED, SumLost): Move(publication.on_sum_lost, (CLOSING, ABANDONED, PAUSED, ENDED)),  # an evaluation has none
    # the charge is durable and the result being published
    (CHARGED, Published): Move(publication.on_published, (CREATED, PAUSED, ENDED)),
    (CHARGED, Aggregated): Move(publication.on_aggregated_again),
    (CHARGED, Accepted): TURN_AWAY,
    (CHARGED, Reported): LATE_REPORT,
    (CHARGED, Rejected): LATE_REJECTION,
    (CHARGED, PauseRequested): PAUSE_LATER,
    (CHARGED, ResumeRequested): RESUME_EARLY,
    (CHARGED, CancelRequested): Move(operator_events.on_cancel_charged),
    (CHARGED, EffectFailed): FAIL,
    # waiting to try again
    (ABANDONED, RetryDue): Move(publication.on_retry_due, (CREATED,)),
    (ABANDONED, Accepted): TURN_AWAY,
    (ABANDONED, Reported): LATE_REPORT,
    (ABANDONED, Rejected): LATE_REJECTION,
    (ABANDONED, PauseRequested): PAUSE_NOW,
    (ABANDONED, CancelRequested): CANCEL,
    (ABANDONED, EffectFailed): FAIL,
    # waiting for the operator to resume
    (PAUSED, ResumeRequested): Move(operator_events.on_resume, (CREATED, AGGREGATED)),
    (PAUSED, Accepted): TURN_AWAY,
    (PAUSED, Reported): LATE_REPORT,
    (PAUSED, Rejected): LATE_REJECTION,
    (PAUSED, Charged): Move(publication.on_charged_paused, (CHARGED,)),
    (PAUSED, CancelRequested): CANCEL,
    (PAUSED, EffectFailed): FAIL,
    # over, unless it is extended; a failed run cannot be. Pausing or resuming is refused as the operator's mistake
    (ENDED, ExtendRequested): Move(operator_events.on_extend, (CREATED,)),
    (ENDED, Accepted): TURN_AWAY,
    (ENDED, Reported): Move(late_reports.on_reported_ended),
    # about a round before the live one, in every situation but ENDED
    (PAST, Accepted): TURN_AWAY,
    (PAST, Reported): LATE_REPORT,
    (PAST, Rejected): LATE_REJECTION,
    (PAST, EffectFailed): FAIL,
}

# What members send, or their absence, once their round has closed.
_CLOSED = frozenset({Declined, MemberFailed, WentSilent, DeadlinePassed})

IGNORED: dict[Situation, frozenset[type]] = {
    NEW: frozenset(),
    CREATED: frozenset({Started, ResumeRequested, SumLost}),
    SAMPLED: frozenset({Started, CohortDrawn, BudgetSpent, SumLost}),
    OPEN: frozenset({Started, CohortDrawn, RoundPrepared, BudgetSpent, SumLost}),
    CLOSING: _CLOSED | {Started, CohortDrawn, RoundPrepared, BudgetSpent, SumLost},
    AGGREGATED: _CLOSED | {Started, CohortDrawn, RoundPrepared},
    CHARGED: _CLOSED | {Started, CohortDrawn, RoundPrepared, Charged, BudgetSpent, SumLost},
    ABANDONED: _CLOSED | {Started, CohortDrawn, RoundPrepared, Aggregated, ResumeRequested, BudgetSpent, SumLost},
    PAUSED: _CLOSED
    | {Started, CohortDrawn, RoundPrepared, Aggregated, Published, RetryDue, PauseRequested, BudgetSpent, SumLost},
    ENDED: _CLOSED
    | {Started, CohortDrawn, RoundPrepared, Rejected, Aggregated, Charged, Published, RetryDue}
    | {CancelRequested, EffectFailed, BudgetSpent, SumLost},
    PAST: _CLOSED | {CohortDrawn, RoundPrepared, Aggregated, Charged, Published, RetryDue, BudgetSpent, SumLost},
}
