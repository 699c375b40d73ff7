"""The timeline of a round: its phases, each member's steps, which members were slow, and why some did not count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from atoll.server.control.names import names_of
from atoll.server.control.runs import PHASES, MemberSummary, RoundSummary
from atoll.server.control.words import duration

_CLAIMED = ("download", "evaluate", "fit")
STEPS = ("wait", *_CLAIMED, "work", "upload", "fold")
"""The steps of a member, in order; ``work`` is time without further details."""

_WHY = {
    "invited": "it has not answered yet",
    "training": "it is at work",
    "declined": "it declined",
    "failed": "its task failed",
    "silent": "its connection was lost and it did not come back",
    "timed_out": "it had not reported when the round closed",
    "late": "its report came after the round had closed",
    "rejected": "its report was refused",
    "over_selected": "others had reported before it, and its report was not needed any more",
    "stopped": "the round was given up",
}


@dataclass(frozen=True)
class StepSpan:
    """One step of a member's work, in seconds since the invitation."""

    step: str
    start_s: float
    end_s: float


def step_spans(member: MemberSummary) -> tuple[StepSpan, ...]:
    """The steps of a member from its invitation on, without gaps.

    Acceptance, first byte, report and fold are the server's times. The steps between acceptance and first byte are the
    participant's own figures, cut to fit.
    """
    end_s = _decided_s(member)
    if end_s is None:
        return ()
    accept_s = min(end_s, member.accept_s if member.accept_s is not None else end_s)
    upload_s = _upload_s(member, end_s)
    found = [StepSpan("wait", 0.0, accept_s), *_at_work(member, accept_s, max(accept_s, upload_s))]
    found.append(StepSpan("upload", max(accept_s, upload_s), end_s))
    if member.fold_s is not None:
        found.append(StepSpan("fold", end_s, max(end_s, member.fold_s)))
    return tuple(one for one in found if one.end_s > one.start_s)


def slowest_first(item: RoundSummary) -> tuple[MemberSummary, ...]:
    """The members of a round: members that counted, slowest first, then those that did not, by name."""
    counted = sorted(
        (one for one in item.members if one.counted), key=lambda one: (-(one.report_s or 0.0), one.participant)
    )
    return (*counted, *sorted((one for one in item.members if not one.counted), key=lambda one: one.participant))


def why(member: MemberSummary) -> str:
    """The reason, in plain words, why a member did not count; empty if it did."""
    if member.counted:
        return ""
    reason = _WHY.get(member.status, member.status)
    if member.status in ("timed_out", "silent") and member.accept_s is None:
        reason += "; it had not taken the task"
    return f"{reason}: {member.detail}" if member.detail else reason


def story(item: RoundSummary) -> Iterator[str]:
    """Sentences about a round: where its time went, and which members were slow."""
    spent = [f"{name} {duration(item.phases_s[name])}" for name in PHASES if name in item.phases_s]
    open_for = "" if item.duration_s is None else f"{duration(item.duration_s)} from the invitation to the close; "
    if spent:
        yield f"{open_for}{duration(sum(item.phases_s.values()))} in all: {', '.join(spent)}"
    if item.reason:
        yield f"it ended because {item.reason}"
    names = names_of((item,))
    times = [(one.report_s, one) for one in slowest_first(item) if one.counted and one.report_s is not None]
    if len(times) > 1:
        (slowest_s, slowest), typical_s = times[0], median(seconds for seconds, _ in times)
        where = max(step_spans(slowest), key=lambda one: one.end_s - one.start_s, default=None)
        mostly = f", most of it {where.step} ({duration(where.end_s - where.start_s)})" if where else ""
        name = names[slowest.participant]
        yield f"slowest: {name} after {duration(slowest_s)}{mostly}; the median is {duration(typical_s)}"


def _decided_s(member: MemberSummary) -> float | None:
    return member.report_s if member.report_s is not None else member.end_s


def _upload_s(member: MemberSummary, end_s: float) -> float:
    """The time at which the update began to arrive; for a member without that time, the end."""
    if member.upload_s is not None:
        return min(member.upload_s, end_s)
    return max(0.0, end_s - member.claimed_s.get("upload", 0.0))


def _at_work(member: MemberSummary, start_s: float, end_s: float) -> Iterator[StepSpan]:
    at_s = start_s
    for step in _CLAIMED:
        until_s = min(end_s, at_s + member.claimed_s.get(step, 0.0))
        yield StepSpan(step, at_s, until_s)
        at_s = until_s
    yield StepSpan("work", at_s, end_s)
