"""The round engine: the rules by which a run changes, as pure functions over frozen values.

Theory of operation
-------------------
A run is a `RunState`. Something happens to it: an `Event`. `step(state, event, now)` gives the next state and the
`Effect`s that the shell must now do. Nothing here reads a clock, a socket or a disk; nothing here is a protobuf
message or awaits.

*One table.* `TABLE` (table.py) lists, for each `Situation` of a run and each event, the handler and the situations
that it may lead to. `IGNORED` lists, for each situation, the events that have no effect there: what a network sends
twice, late or out of order. Every other event is refused with `IllegalTransition`: a correct shell never sends it. A
step that changes nothing returns the same state object.

*The shell's part*, for each event, one event at a time per run:

1. `step`. If it raises, the event never happened: report it, persist nothing.
2. If the state changed, persist the event, with its `now`, and in the same transaction write what the step's
   `RecordRound` and `RecordMember` effects say.
3. Do the other effects, in order. A slow effect answers later with an event (`CohortDrawn`, `Aggregated`).

After a crash: `replay` the persisted events, then do what `resume` returns. Effects are therefore done at least
once, and each of them must be idempotent. An answer may arrive twice, or after its round has ended.

*A round*: CREATED (a cohort is being drawn), SAMPLED (window and grid are being chosen), OPEN (members train and
report), CLOSING (the set is fixed, its sum is being taken), AGGREGATED (the privacy charge and the result are being
stored), CHARGED (the result is being published), RELEASED. An attempt is ABANDONED when its quorum is out of reach or a
member that the job requires is missing. The round is then tried again, unless the attempt failed for the same reasons
as the previous one.

*Invariants*, which tests/server/rounds checks after every step of ten thousand random schedules of crashes,
duplicates, reorderings, losses and clock jumps:

- A participant is in a round's sum at most once, and an update in at most one released sum.
- A report that was acknowledged is in a sum, waits for one, or has a recorded reason why not.
- The set of a sum only shrinks while CLOSING (a report found unusable) and is fixed from AGGREGATED on.
- A result is published only after it was charged; a sum is charged once.
- A run that lacks privacy budget pauses, before a draw or before a charge. A sum that waits for its charge is charged
    when the run resumes.
- Every member of an ended round has reported, or has a final status and a reason.
- No transition depends on the clock: deadlines and retries are events.
- The state's size does not grow with the number of rounds played.

*Stragglers and asynchrony are one policy* (`StragglerPolicy`). Under `LateMode.CARRY` a late update waits for the
next train round, counts towards its goal in place of a fresh report, with a weight discounted by its staleness:
with a small cohort and much over-selection this is buffered asynchronous aggregation (FedBuff, Nguyen et al. 2022),
with none it is synchronous FedAvg.
"""

from atoll.server.rounds.closing import aggregate as aggregate_of
from atoll.server.rounds.diagram import state_diagram
from atoll.server.rounds.effects import (
    Aggregate,
    ChargeAndStore,
    DrawCohort,
    DropSpools,
    Effect,
    Finish,
    Fold,
    Invite,
    PrepareRound,
    Publish,
    Receipt,
    RecordMember,
    RecordRound,
    StartDeadline,
    StartRetry,
    Stop,
    Verdict,
)
from atoll.server.rounds.engine import initial, replay, resume, situation, step, wants
from atoll.server.rounds.errors import IllegalTransition, MismatchedSum, PolicyError, RoundError
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
    Event,
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
from atoll.server.rounds.lifecycle import planned_round, trained_before
from atoll.server.rounds.policy import LateMode, LatePolicy, Patience, RunPolicy, StragglerPolicy, Weighting
from atoll.server.rounds.roster import Member, MemberStatus, Roster
from atoll.server.rounds.run_state import (
    Carried,
    Contribution,
    PastRound,
    Phase,
    RoundGrid,
    RoundKind,
    RoundState,
    RunState,
    RunStatus,
    Tally,
)
from atoll.server.rounds.step import Step
from atoll.server.rounds.table import IGNORED, TABLE, Move, Situation
from atoll.server.rounds.updates import Metrics, RoundKey, Scores, UpdateRef

__all__ = [
    "IGNORED",
    "TABLE",
    "Accepted",
    "Aggregate",
    "Aggregated",
    "BudgetSpent",
    "CancelRequested",
    "Carried",
    "ChargeAndStore",
    "Charged",
    "CohortDrawn",
    "Contribution",
    "DeadlinePassed",
    "Declined",
    "DrawCohort",
    "DropSpools",
    "Effect",
    "EffectFailed",
    "Event",
    "ExtendRequested",
    "Finish",
    "Fold",
    "IllegalTransition",
    "Invite",
    "LateMode",
    "LatePolicy",
    "Member",
    "MemberFailed",
    "MemberStatus",
    "Metrics",
    "MismatchedSum",
    "Move",
    "PastRound",
    "Patience",
    "PauseRequested",
    "Phase",
    "PolicyError",
    "PrepareRound",
    "Publish",
    "Published",
    "Receipt",
    "RecordMember",
    "RecordRound",
    "Rejected",
    "Reported",
    "ResumeRequested",
    "RetryDue",
    "Roster",
    "RoundError",
    "RoundGrid",
    "RoundKey",
    "RoundKind",
    "RoundPrepared",
    "RoundState",
    "RunPolicy",
    "RunState",
    "RunStatus",
    "Scores",
    "Situation",
    "StartDeadline",
    "StartRetry",
    "Started",
    "Step",
    "Stop",
    "StragglerPolicy",
    "SumLost",
    "Tally",
    "UpdateRef",
    "Verdict",
    "Weighting",
    "WentSilent",
    "aggregate_of",
    "initial",
    "planned_round",
    "replay",
    "resume",
    "situation",
    "state_diagram",
    "step",
    "trained_before",
    "wants",
]
