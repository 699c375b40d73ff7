"""Handlers of an open round: what its members do, and its deadline."""

from dataclasses import replace

from atoll.server.rounds import late_reports
from atoll.server.rounds.closing import abandon, abandon_without_required, aggregate, at_deadline, judge, present
from atoll.server.rounds.effects import Effect, Fold, Receipt, RecordMember, Verdict
from atoll.server.rounds.events import (
    Accepted,
    DeadlinePassed,
    Declined,
    MemberFailed,
    Rejected,
    Reported,
    WentSilent,
)
from atoll.server.rounds.lifecycle import amend, member_of
from atoll.server.rounds.report_checks import flaw_of, is_of, judged_receipt, rejected, with_report
from atoll.server.rounds.roster import LEFT, MAY_REPORT, OUTSTANDING, Member, MemberStatus
from atoll.server.rounds.run_state import RunState
from atoll.server.rounds.step import Step, live
from atoll.server.rounds.weights import integer_weight
from atoll.text.figures import counted

REJECTABLE = MAY_REPORT | {MemberStatus.REPORTED}


def on_accepted(state: RunState, event: Accepted, now: float) -> Step:
    """An invited or silent member takes the task: it is training now."""
    member = live(state).roster.get(event.participant)
    if member is None or member.status not in (MemberStatus.INVITED, MemberStatus.SILENT):
        return Step(state)
    taken = replace(member, status=MemberStatus.TRAINING, detail="", at=now, accepted_at=now)
    return Step(_with(state, taken))


def on_declined(state: RunState, event: Declined, now: float) -> Step:
    """A member declines the task."""
    return _leave(state, event.participant, MemberStatus.DECLINED, event.reason, now)


def on_member_failed(state: RunState, event: MemberFailed, now: float) -> Step:
    """A member's training failed."""
    return _leave(state, event.participant, MemberStatus.FAILED, event.reason, now)


def on_went_silent(state: RunState, event: WentSilent, now: float) -> Step:
    """A member is unreachable; it may come back before the deadline."""
    member = live(state).roster.get(event.participant)
    if member is None or member.status not in OUTSTANDING:
        return Step(state)
    return judge(_with(state, replace(member, status=MemberStatus.SILENT, detail=event.reason, at=now)), now)


def on_deadline(state: RunState, event: DeadlinePassed, now: float) -> Step:
    """No more reports: close, or abandon."""
    del event
    return at_deadline(state, now)


def on_reported(state: RunState, event: Reported, now: float) -> Step:
    """Count a report, once."""
    rnd = live(state)
    member = rnd.roster.get(event.participant)
    if member is None or member.status not in MAY_REPORT:
        return Step(state, (judged_receipt(event, member),))
    flaw = flaw_of(state.policy, rnd.kind, member, event)
    if flaw:
        refused = _leave(state, event.participant, MemberStatus.REJECTED, flaw, now)
        return refused.after(Receipt(event.key, event.participant, Verdict.REJECTED, flaw))
    reported = with_report(member, event, MemberStatus.REPORTED, "", now)
    effects: list[Effect] = [Receipt(event.key, event.participant, Verdict.COUNTED, "")]
    if event.update is not None:
        shift = rnd.grid.weight_shift if rnd.grid else 0
        effects.insert(0, Fold(rnd.key, event.update, integer_weight(state.policy.counted_weight(event.weight), shift)))
    return judge(_with(state, reported), now).after(*effects)


def on_rejected(state: RunState, event: Rejected, now: float) -> Step:
    """A report is unusable; it may already have counted, or be a carried update that this round took."""
    removed = without(state, event, now)
    return Step(state) if removed is None else judge(removed.state, now).after(*removed.effects)


def on_rejected_closing(state: RunState, event: Rejected, now: float) -> Step:
    """Like `on_rejected`, while the sum is being computed: the set shrinks, and the sum is requested again."""
    rnd = live(state)
    member = rnd.roster.get(event.participant) if event.key == rnd.key else None
    if member is not None and member.status is not MemberStatus.REPORTED:
        return late_reports.on_rejected(state, event, now)
    removed = without(state, event, now)
    return Step(state) if removed is None else sum_anew(removed, now)


def sum_anew(shrunk: Step, now: float) -> Step:
    """Request the sum of the remaining set; abandon the round if the set is smaller than the quorum."""
    state = shrunk.state
    left, quorum = present(state), state.policy.straggler.quorum
    if live(state).roster.missed:
        return abandon_without_required(state, LEFT, now).after(*shrunk.effects)
    if left < quorum:
        reason = f"quorum {quorum} can no longer be reached: {counted(left, 'report')} left after rejections"
        return abandon(state, reason, MemberStatus.STOPPED, now).after(*shrunk.effects)
    return Step(state, (*shrunk.effects, aggregate(state)))


def without(state: RunState, event: Rejected, now: float) -> Step | None:
    """The live round without that member's contribution, made or expected; None if it has none."""
    rnd = live(state)
    receipt = Receipt(event.key, event.participant, Verdict.REJECTED, event.reason)
    if event.key == rnd.key:
        member = rnd.roster.get(event.participant)
        if member is None or member.status not in (MAY_REPORT if event.unreported else REJECTABLE):
            return None
        return Step(_with(state, rejected(member, event.reason, now)), (receipt,))
    taken = [] if event.unreported else [c for c in rnd.carried if is_of(c, event)]
    if not taken:
        return None
    left = tuple(c for c in rnd.carried if not is_of(c, event))
    gone = rejected(member_of(state, taken[0]), event.reason, now)
    shrunk = amend(replace(state, round=replace(rnd, carried=left)), event.key, gone)
    return Step(shrunk, (RecordMember(event.key, gone), receipt))


def _leave(state: RunState, participant: str, status: MemberStatus, reason: str, now: float) -> Step:
    member = live(state).roster.get(participant)
    if member is None or member.status not in MAY_REPORT:
        return Step(state)
    return judge(_with(state, replace(member, status=status, detail=reason, at=now)), now)


def _with(state: RunState, member: Member) -> RunState:
    rnd = live(state)
    return replace(state, round=replace(rnd, roster=rnd.roster.put(member)))
