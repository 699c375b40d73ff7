"""Handlers of messages about a closed round: each late report gets a reason, and none joins a fixed sum."""

from dataclasses import replace

from atoll.server.rounds.effects import Receipt, RecordMember, Stop, Verdict
from atoll.server.rounds.events import Accepted, Rejected, Reported
from atoll.server.rounds.lifecycle import MAY_BE_LATE, amend, carries, draw
from atoll.server.rounds.report_checks import flaw_of, is_of, judged_receipt, rejected, with_report
from atoll.server.rounds.roster import Member, MemberStatus
from atoll.server.rounds.run_state import Carried, PastRound, Phase, RoundKind, RunState, RunStatus
from atoll.server.rounds.step import Step
from atoll.server.rounds.updates import RoundKey


def on_accepted(state: RunState, event: Accepted, now: float) -> Step:
    """Stop a member whose work can no longer count; if late reports are carried, it may continue."""
    del now
    past = _remembered(state, event.key)
    if past is not None and _carriable(state, past):
        return Step(state)
    return Step(state, (Stop(event.key, (event.participant,), "the round is closed"),))


def on_reported(state: RunState, event: Reported, now: float) -> Step:
    """Carry a late report, or refuse it and record the reason."""
    past = _remembered(state, event.key)
    if past is None:
        return Step(state, (_too_late(event),))
    member = past.roster.get(event.participant)
    if member is None or member.status not in MAY_BE_LATE or member.update is not None:
        return Step(state, (judged_receipt(event, member),))
    if not _carriable(state, past):
        return _refuse(state, event, member, now)
    flaw = flaw_of(state.policy, past.kind, member, event)
    if flaw or event.update is None:
        gone = rejected(member, flaw, now)
        receipt = Receipt(event.key, event.participant, Verdict.REJECTED, flaw)
        return Step(amend(state, event.key, gone), (RecordMember(event.key, gone), receipt))
    kept = with_report(member, event, MemberStatus.LATE, f"late ({member.detail}): carried to a later round", now)
    receipt = Receipt(event.key, event.participant, Verdict.CARRIED, kept.detail)
    pool = (*state.carried, Carried(event.update, past.version))
    return _with_pool(amend(state, event.key, kept), pool).after(RecordMember(event.key, kept), receipt)


def on_reported_ended(state: RunState, event: Reported, now: float) -> Step:
    """Refuse a report because the run has ended; a report that counted gets its receipt again."""
    del now
    past = _remembered(state, event.key)
    member = past.roster.get(event.participant) if past else None
    if member is None or member.status in MAY_BE_LATE:
        return Step(state, (_too_late(event),))
    return Step(state, (judged_receipt(event, member),))


def on_rejected(state: RunState, event: Rejected, now: float) -> Step:
    """Drop a waiting carried update that is unusable; a sum that has been taken keeps its updates."""
    left = tuple(c for c in state.carried if event.unreported or not is_of(c, event))
    past = _remembered(state, event.key)
    member = past.roster.get(event.participant) if past else None
    if len(left) == len(state.carried) or member is None:
        return Step(state)
    gone = rejected(member, event.reason, now)
    receipt = Receipt(event.key, event.participant, Verdict.REJECTED, event.reason)
    return _with_pool(amend(state, event.key, gone), left).after(RecordMember(event.key, gone), receipt)


def wants(state: RunState, key: RoundKey, participant: str) -> bool:
    """Whether a late report of this participant for that closed round would be carried."""
    past = _remembered(state, key)
    member = past.roster.get(participant) if past else None
    if past is None or member is None or not _carriable(state, past):
        return False
    return member.status in MAY_BE_LATE and member.update is None


def _refuse(state: RunState, event: Reported, member: Member, now: float) -> Step:
    detail = f"reported after the round was over ({member.detail})"
    gone = replace(member, status=MemberStatus.LATE, detail=detail, at=now)
    receipt = Receipt(event.key, event.participant, Verdict.LATE, detail)
    return Step(amend(state, event.key, gone), (RecordMember(event.key, gone), receipt))


def _too_late(event: Reported) -> Receipt:
    return Receipt(event.key, event.participant, Verdict.LATE, f"round {event.key} is over")


def _with_pool(state: RunState, pool: tuple[Carried, ...]) -> Step:
    """Set the waiting updates; request a pending draw again, since the draw excludes their participants."""
    changed = replace(state, carried=pool)
    rnd = changed.round
    drawing = rnd is not None and rnd.phase is Phase.CREATED and changed.status is RunStatus.RUNNING
    return Step(changed, (draw(changed),) if drawing and rnd and rnd.kind is RoundKind.TRAIN else ())


def _carriable(state: RunState, past: PastRound) -> bool:
    fresh = state.version - past.version <= state.policy.straggler.late.max_staleness
    return fresh and carries(state, past.kind) and not state.status.ended


def _remembered(state: RunState, key: RoundKey) -> PastRound | None:
    """The round of that key, the live one or an ended one; None if the state no longer holds it."""
    rnd = state.round
    if rnd is not None and rnd.key == key:
        return PastRound(rnd.key, rnd.kind, rnd.version, rnd.roster)
    return next((past for past in state.past if past.key == key), None)
