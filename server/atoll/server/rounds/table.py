"""The transition table: every event that a run takes, by the situation that the run is in.

An entry names the handler and every situation that it may lead to; staying is always allowed. `engine.step` looks the
entry up, refuses the event when there is none, and refuses a handler that ends anywhere else than its entry says. A
round's `RELEASED` is not in the table: a run never rests there, for publishing a round begins the next one, pauses, or
ends the run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from atoll.server.rounds import control, late, opening, release, reporting
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
from atoll.server.rounds.step import Step
from atoll.server.rounds.values import RunState


class Situation(StrEnum):
    """Where a run stands, as one word; PAST is not the run's but the event's: it is about an earlier round."""

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


# The event's type is the table's key beside the handler, which a type checker cannot follow through a mapping.
Handler = Callable[[RunState, Any, float], Step]


@dataclass(frozen=True, slots=True)
class Move:
    """What an event does in a situation."""

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

# An attempt given up: try again, unless a pause was asked for, or attempts are spent: then the run fails, but an
# evaluation is skipped, which leads to the next round or to the end.
GIVEN_UP = (ABANDONED, CREATED, PAUSED, ENDED)

STAY = Move(control.ignore)
PAUSE_LATER = Move(control.on_pause_later)
PAUSE_NOW = Move(control.on_pause_now, (PAUSED,))
RESUME_EARLY = Move(control.on_resume_early)
CANCEL = Move(control.on_cancel, (ENDED,))
FAIL = Move(control.on_effect_failed, (ENDED,))
UNPAID = Move(control.on_budget_spent, (PAUSED,))
TURN_AWAY = Move(late.on_accepted)
LATE_REPORT = Move(late.on_reported)
LATE_REJECTION = Move(late.on_rejected)

TABLE: dict[tuple[Situation, type], Move] = {
    # submitted, not begun
    (NEW, Started): Move(opening.on_started, (CREATED, PAUSED)),
    (NEW, PauseRequested): PAUSE_LATER,
    (NEW, ResumeRequested): RESUME_EARLY,
    (NEW, CancelRequested): CANCEL,
    # waiting for a cohort
    (CREATED, CohortDrawn): Move(opening.on_cohort_drawn, (SAMPLED, ABANDONED, CREATED, ENDED)),
    (CREATED, Started): STAY,
    (CREATED, PauseRequested): PAUSE_NOW,
    (CREATED, ResumeRequested): STAY,
    (CREATED, CancelRequested): CANCEL,
    (CREATED, EffectFailed): FAIL,
    (CREATED, BudgetSpent): UNPAID,
    (CREATED, SumLost): STAY,
    # waiting for the grid and the window
    (SAMPLED, RoundPrepared): Move(opening.on_round_prepared, (OPEN, CLOSING)),
    (SAMPLED, Rejected): Move(reporting.on_rejected, (ABANDONED, PAUSED, ENDED)),
    (SAMPLED, Started): STAY,
    (SAMPLED, CohortDrawn): STAY,
    (SAMPLED, PauseRequested): PAUSE_LATER,
    (SAMPLED, ResumeRequested): RESUME_EARLY,
    (SAMPLED, CancelRequested): CANCEL,
    (SAMPLED, EffectFailed): FAIL,
    (SAMPLED, BudgetSpent): STAY,
    (SAMPLED, SumLost): STAY,
    # members at work
    (OPEN, Accepted): Move(reporting.on_accepted),
    (OPEN, Declined): Move(reporting.on_declined, (CLOSING, *GIVEN_UP)),
    (OPEN, MemberFailed): Move(reporting.on_member_failed, (CLOSING, *GIVEN_UP)),
    (OPEN, WentSilent): Move(reporting.on_went_silent, (CLOSING,)),
    (OPEN, Reported): Move(reporting.on_reported, (CLOSING, *GIVEN_UP)),
    (OPEN, Rejected): Move(reporting.on_rejected, (CLOSING, *GIVEN_UP)),
    (OPEN, DeadlinePassed): Move(reporting.on_deadline, (CLOSING, *GIVEN_UP)),
    (OPEN, Started): STAY,
    (OPEN, CohortDrawn): STAY,
    (OPEN, RoundPrepared): STAY,
    (OPEN, PauseRequested): PAUSE_LATER,
    (OPEN, ResumeRequested): RESUME_EARLY,
    (OPEN, CancelRequested): CANCEL,
    (OPEN, EffectFailed): FAIL,
    (OPEN, BudgetSpent): STAY,
    (OPEN, SumLost): STAY,
    # the set is fixed and being summed
    (CLOSING, Aggregated): Move(release.on_aggregated, (AGGREGATED,)),
    (CLOSING, Accepted): TURN_AWAY,
    (CLOSING, Declined): STAY,
    (CLOSING, MemberFailed): STAY,
    (CLOSING, WentSilent): STAY,
    (CLOSING, Reported): LATE_REPORT,
    (CLOSING, Rejected): Move(reporting.on_rejected_closing, GIVEN_UP),
    (CLOSING, DeadlinePassed): STAY,
    (CLOSING, Started): STAY,
    (CLOSING, CohortDrawn): STAY,
    (CLOSING, RoundPrepared): STAY,
    (CLOSING, PauseRequested): PAUSE_LATER,
    (CLOSING, ResumeRequested): RESUME_EARLY,
    (CLOSING, CancelRequested): CANCEL,
    (CLOSING, EffectFailed): FAIL,
    (CLOSING, BudgetSpent): STAY,
    (CLOSING, SumLost): STAY,
    # the sum is taken and being charged
    (AGGREGATED, Charged): Move(release.on_charged, (CHARGED,)),
    (AGGREGATED, Aggregated): Move(release.on_aggregated_again),
    (AGGREGATED, Accepted): TURN_AWAY,
    (AGGREGATED, Declined): STAY,
    (AGGREGATED, MemberFailed): STAY,
    (AGGREGATED, WentSilent): STAY,
    (AGGREGATED, Reported): LATE_REPORT,
    (AGGREGATED, Rejected): LATE_REJECTION,
    (AGGREGATED, DeadlinePassed): STAY,
    (AGGREGATED, Started): STAY,
    (AGGREGATED, CohortDrawn): STAY,
    (AGGREGATED, RoundPrepared): STAY,
    (AGGREGATED, PauseRequested): PAUSE_LATER,
    (AGGREGATED, ResumeRequested): RESUME_EARLY,
    (AGGREGATED, CancelRequested): CANCEL,
    (AGGREGATED, EffectFailed): FAIL,
    (AGGREGATED, BudgetSpent): UNPAID,
    (AGGREGATED, SumLost): Move(release.on_sum_lost, GIVEN_UP),
    # the charge is durable and the result being published
    (CHARGED, Published): Move(release.on_published, (CREATED, PAUSED, ENDED)),
    (CHARGED, Charged): STAY,
    (CHARGED, Aggregated): Move(release.on_aggregated_again),
    (CHARGED, Accepted): TURN_AWAY,
    (CHARGED, Declined): STAY,
    (CHARGED, MemberFailed): STAY,
    (CHARGED, WentSilent): STAY,
    (CHARGED, Reported): LATE_REPORT,
    (CHARGED, Rejected): LATE_REJECTION,
    (CHARGED, DeadlinePassed): STAY,
    (CHARGED, Started): STAY,
    (CHARGED, CohortDrawn): STAY,
    (CHARGED, RoundPrepared): STAY,
    (CHARGED, PauseRequested): PAUSE_LATER,
    (CHARGED, ResumeRequested): RESUME_EARLY,
    (CHARGED, CancelRequested): Move(control.on_cancel_charged),
    (CHARGED, EffectFailed): FAIL,
    (CHARGED, BudgetSpent): STAY,
    (CHARGED, SumLost): STAY,
    # waiting to try again
    (ABANDONED, RetryDue): Move(release.on_retry_due, (CREATED,)),
    (ABANDONED, Accepted): TURN_AWAY,
    (ABANDONED, Declined): STAY,
    (ABANDONED, MemberFailed): STAY,
    (ABANDONED, WentSilent): STAY,
    (ABANDONED, Reported): LATE_REPORT,
    (ABANDONED, Rejected): LATE_REJECTION,
    (ABANDONED, DeadlinePassed): STAY,
    (ABANDONED, Started): STAY,
    (ABANDONED, CohortDrawn): STAY,
    (ABANDONED, RoundPrepared): STAY,
    (ABANDONED, Aggregated): STAY,
    (ABANDONED, PauseRequested): PAUSE_NOW,
    (ABANDONED, ResumeRequested): STAY,
    (ABANDONED, CancelRequested): CANCEL,
    (ABANDONED, EffectFailed): FAIL,
    (ABANDONED, BudgetSpent): STAY,
    (ABANDONED, SumLost): STAY,
    # nothing under way until the operator says so
    (PAUSED, ResumeRequested): Move(control.on_resume, (CREATED, AGGREGATED)),
    (PAUSED, PauseRequested): STAY,
    (PAUSED, Accepted): TURN_AWAY,
    (PAUSED, Declined): STAY,
    (PAUSED, MemberFailed): STAY,
    (PAUSED, WentSilent): STAY,
    (PAUSED, Reported): LATE_REPORT,
    (PAUSED, Rejected): LATE_REJECTION,
    (PAUSED, DeadlinePassed): STAY,
    (PAUSED, Started): STAY,
    (PAUSED, CohortDrawn): STAY,
    (PAUSED, RoundPrepared): STAY,
    (PAUSED, Aggregated): STAY,
    (PAUSED, Charged): Move(release.on_charged_paused, (CHARGED,)),
    (PAUSED, Published): STAY,
    (PAUSED, RetryDue): STAY,
    (PAUSED, CancelRequested): CANCEL,
    (PAUSED, EffectFailed): FAIL,
    (PAUSED, BudgetSpent): STAY,
    (PAUSED, SumLost): STAY,
    # over; pausing or resuming it is the operator's mistake
    (ENDED, Accepted): TURN_AWAY,
    (ENDED, Declined): STAY,
    (ENDED, MemberFailed): STAY,
    (ENDED, WentSilent): STAY,
    (ENDED, Reported): Move(late.on_reported_ended),
    (ENDED, Rejected): STAY,
    (ENDED, DeadlinePassed): STAY,
    (ENDED, Started): STAY,
    (ENDED, CohortDrawn): STAY,
    (ENDED, RoundPrepared): STAY,
    (ENDED, Aggregated): STAY,
    (ENDED, Charged): STAY,
    (ENDED, Published): STAY,
    (ENDED, RetryDue): STAY,
    (ENDED, CancelRequested): STAY,
    (ENDED, EffectFailed): STAY,
    (ENDED, BudgetSpent): STAY,
    (ENDED, SumLost): STAY,
    # about an earlier round, whatever the live one does
    (PAST, Accepted): TURN_AWAY,
    (PAST, Declined): STAY,
    (PAST, MemberFailed): STAY,
    (PAST, WentSilent): STAY,
    (PAST, Reported): LATE_REPORT,
    (PAST, Rejected): LATE_REJECTION,
    (PAST, DeadlinePassed): STAY,
    (PAST, CohortDrawn): STAY,
    (PAST, RoundPrepared): STAY,
    (PAST, Aggregated): STAY,
    (PAST, Charged): STAY,
    (PAST, Published): STAY,
    (PAST, RetryDue): STAY,
    (PAST, EffectFailed): FAIL,
    (PAST, BudgetSpent): STAY,
    (PAST, SumLost): STAY,
}
