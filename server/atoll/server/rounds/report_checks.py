"""Checks of a report and its receipt, shared by open rounds and late reports."""

from dataclasses import replace

from atoll.server.rounds.effects import Receipt, Verdict
from atoll.server.rounds.events import Rejected, Reported
from atoll.server.rounds.policy import RunPolicy, Weighting
from atoll.server.rounds.roster import Member, MemberStatus
from atoll.server.rounds.run_state import Carried, RoundKind


def flaw_of(policy: RunPolicy, kind: RoundKind, member: Member, report: Reported) -> str:
    """The reason why the report cannot count, as a message for the participant; empty if it can."""
    if kind is RoundKind.EVALUATE:
        return "" if report.update is None else "an evaluate round takes metrics, not an update"
    if report.update is None:
        return "a train round takes an update, and none was sent"
    if report.weight < 1:
        return "weight 0: report at least 1 example, or decline"
    if policy.weighting is Weighting.EXAMPLES and report.weight > member.declared_weight:
        # The grid is sized for the declared weights: more could overflow the sum.
        return f"weight {report.weight}: at most the {member.declared_weight} examples declared at check-in count"
    return ""


def with_report(member: Member, report: Reported, status: MemberStatus, detail: str, now: float) -> Member:
    """The member with its acknowledged report."""
    return replace(
        member,
        status=status,
        detail=detail,
        reported_weight=report.weight,
        update=report.update,
        metrics=report.metrics,
        scores=report.scores,
        at=now,
    )


def judged_receipt(report: Reported, member: Member | None, otherwise: str = "") -> Receipt:
    """The receipt of a report that changes nothing: repeated, conflicting, too late, or not by a member."""

    def receipt(verdict: Verdict, detail: str) -> Receipt:
        return Receipt(report.key, report.participant, verdict, detail)

    if member is None:
        return receipt(Verdict.REJECTED, otherwise or f"not a member of round {report.key}")
    if _repeats(report, member):
        if member.status is MemberStatus.REPORTED:
            return receipt(Verdict.COUNTED, "")
        if member.update is not None:
            return receipt(Verdict.CARRIED, member.detail)
    elif member.status is MemberStatus.REPORTED or member.update is not None:
        return receipt(Verdict.CONFLICT, "another report for this round was acknowledged before")
    if member.status in (MemberStatus.LATE, MemberStatus.STOPPED):
        return receipt(Verdict.LATE, member.detail)
    return receipt(Verdict.REJECTED, f"the member has {member.status} already: {member.detail}")


def _repeats(report: Reported, member: Member) -> bool:
    if report.update is None or member.update is None:
        return report.update is member.update
    return report.update.digest == member.update.digest


def rejected(member: Member, reason: str, now: float) -> Member:
    """The member with its report refused."""
    return replace(member, status=MemberStatus.REJECTED, detail=reason, update=None, at=now)


def is_of(carried: Carried, event: Rejected) -> bool:
    """Whether the rejection is about this carried update."""
    return (carried.update.key, carried.update.participant) == (event.key, event.participant)
