"""Why an attempt is abandoned: which members are missing, and whether trying again can help."""

from collections import Counter
from collections.abc import Collection

from atoll.server.rounds.roster import Member, MemberStatus, Roster
from atoll.server.rounds.run_state import RoundState, RunState
from atoll.server.rounds.step import live
from atoll.server.rounds.updates import RoundKey
from atoll.text.figures import counted

MAX_NAMED = 5
"""Maximum number of required members that a reason names."""
MISSING = "a member that the job requires (cohort.required) is missing"
NOT_AGAIN = "; it is not tried again, because the same members failed with the same error before"
_DID = {
    MemberStatus.INVITED: "had not taken the task",
    MemberStatus.TRAINING: "had not reported",
    MemberStatus.SILENT: "was disconnected",
    MemberStatus.DECLINED: "declined",
    MemberStatus.FAILED: "failed",
    MemberStatus.REJECTED: "sent a report that was rejected",
}
_WERE = {
    MemberStatus.REPORTED: "reported",
    MemberStatus.DECLINED: "declined",
    MemberStatus.FAILED: "failed",
    MemberStatus.REJECTED: "rejected",
    MemberStatus.SILENT: "disconnected",
    MemberStatus.INVITED: "not begun",
    MemberStatus.TRAINING: "still at work",
}


def missing_members(roster: Roster, statuses: Collection[MemberStatus]) -> str:
    """The required members with one of these statuses, and why they are missing."""
    absent = [m for m in roster if m.required and m.status in statuses]
    named = "; ".join(f"{_named(m)} {_DID[m.status]}{f': {m.detail}' if m.detail else ''}" for m in absent[:MAX_NAMED])
    more = len(absent) - MAX_NAMED
    return f"{named}{f'; {more} more' if more > 0 else ''}"


def _named(member: Member) -> str:
    own = member.participant
    return own if member.required == own else f"{member.required} ({own})"


def what_members_did(roster: Roster) -> str:
    """Count members by status and give the most common reason, for operators who do not look at single members."""
    gone = Counter(m.detail for m in roster if m.status in _DID and m.detail)
    if not gone:
        return ""
    statuses = Counter(m.status for m in roster)
    counts = ", ".join(f"{statuses[status]} {words}" for status, words in _WERE.items() if statuses[status])
    said, times = min(gone.items(), key=lambda item: (-item[1], item[0]))
    return f"; of {counted(len(roster), 'member')}: {counts}; the commonest reason ({counted(times, 'member')}): {said}"


def fails_again(state: RunState) -> bool:
    """Whether the live attempt fails for the same reasons as the previous one, so that a third would fail too.

    True if a required member fails for the same reason again. Also true if failures alone keep the round from its
    quorum, every reason already occurred in the previous attempt, and at least one member fails for the same reason
    again. Unreachable, late and unwilling members do not count as failures: they may report next time.
    """
    rnd = live(state)
    now, before = _failures(rnd.roster), _failures_before(state, rnd)
    again = {member for member, reason in now.items() if before.get(member) == reason}
    if any(m.required for m in rnd.roster if m.participant in again):
        return True
    others = len(rnd.roster) + len(rnd.carried) - len(now)
    known = set(now.values()) <= set(before.values())
    return bool(again) and known and others < state.policy.straggler.quorum


def _failures(roster: Roster) -> dict[str, str]:
    return {m.participant: m.detail for m in roster if m.status is MemberStatus.FAILED}


def _failures_before(state: RunState, rnd: RoundState) -> dict[str, str]:
    """Failures of the previous attempt; empty if the live one is the first."""
    key = RoundKey(rnd.key.round, rnd.key.attempt - 1)
    return next((_failures(past.roster) for past in reversed(state.past) if past.key == key), {})
