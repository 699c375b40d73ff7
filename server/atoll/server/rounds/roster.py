"""The members of a round: an immutable table in which changing one member is cheap."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from atoll.server.rounds.updates import Metrics, Scores, UpdateRef

_BLOCK = (
    128  # members: a change copies one block and the tuple of blocks, about sqrt(cohort) each for cohorts near 10,000
)


class MemberStatus(StrEnum):
    """The status of a member. Only REPORTED counts; all statuses except the first two are final when the round ends."""

    INVITED = "invited"
    TRAINING = "training"
    REPORTED = "reported"
    DECLINED = "declined"
    FAILED = "failed"
    SILENT = "silent"
    TIMED_OUT = "timed_out"
    LATE = "late"
    REJECTED = "rejected"
    OVER_SELECTED = "over_selected"
    STOPPED = "stopped"


OUTSTANDING = frozenset({MemberStatus.INVITED, MemberStatus.TRAINING})
MAY_REPORT = OUTSTANDING | {MemberStatus.SILENT}
"""Statuses of members from whom an open round accepts a report; silent members may come back."""
LEFT = frozenset({MemberStatus.DECLINED, MemberStatus.FAILED, MemberStatus.REJECTED})
"""Statuses of members that can no longer report, while the round is open."""


@dataclass(frozen=True, slots=True)
class Member:
    """A participant in one round.

    Attributes:
        participant: its id.
        declared_weight: examples declared at check-in, which bounds what may be reported.
        status: its status.
        detail: the reason for the status, for an operator.
        reported_weight: examples that it trained on, 0 until reported.
        update: the acknowledged update of a train round.
        metrics: reported figures.
        at: epoch seconds of the last change of this entry.
        accepted_at: epoch seconds at which it last accepted the task; 0 until then.
        scores: reported histograms of scores.
        required: the name under which the job requires its report (`[cohort] required`); empty if it does not.
    """

    participant: str
    declared_weight: int
    status: MemberStatus = MemberStatus.INVITED
    detail: str = ""
    reported_weight: int = 0
    update: UpdateRef | None = None
    metrics: Metrics = ()
    at: float = 0.0
    accepted_at: float = 0.0
    required: str = ""
    scores: tuple[Scores, ...] = ()


def _name(member: Member) -> str:
    return member.participant


def _is_awaited(member: Member) -> bool:
    return member.required != "" and member.status in MAY_REPORT


def _is_missed(member: Member) -> bool:
    return member.required != "" and member.status in LEFT


def _first(block: tuple[Member, ...]) -> str:
    return block[0].participant


@dataclass(frozen=True, slots=True)
class Roster:
    """Members sorted by participant, in blocks, with the counts that decide a round.

    Attributes:
        blocks: non-empty blocks of members, in order.
        outstanding: members INVITED or TRAINING.
        silent: members SILENT, which may still come back.
        reported: members REPORTED.
        rejected: members REJECTED.
        awaited: required members that may still report.
        missed: required members that can no longer report.
    """

    blocks: tuple[tuple[Member, ...], ...] = ()
    outstanding: int = 0
    silent: int = 0
    reported: int = 0
    rejected: int = 0
    awaited: int = 0
    missed: int = 0

    @classmethod
    def of(cls, members: Iterable[Member]) -> "Roster":
        """Make a roster of members in any order; each participant at most once."""
        ordered = sorted(members, key=_name)
        blocks = tuple(tuple(ordered[i : i + _BLOCK]) for i in range(0, len(ordered), _BLOCK))
        return cls(
            blocks,
            outstanding=sum(m.status in OUTSTANDING for m in ordered),
            silent=sum(m.status is MemberStatus.SILENT for m in ordered),
            reported=sum(m.status is MemberStatus.REPORTED for m in ordered),
            rejected=sum(m.status is MemberStatus.REJECTED for m in ordered),
            awaited=sum(map(_is_awaited, ordered)),
            missed=sum(map(_is_missed, ordered)),
        )

    def __iter__(self) -> Iterator[Member]:
        for block in self.blocks:
            yield from block

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks)

    def _place(self, participant: str) -> tuple[int, int] | None:
        i = bisect_right(self.blocks, participant, key=_first) - 1
        if i < 0:
            return None
        block = self.blocks[i]
        j = bisect_left(block, participant, key=_name)
        return (i, j) if j < len(block) and block[j].participant == participant else None

    def get(self, participant: str) -> Member | None:
        """The member of that id, None for a participant that is not in the round."""
        place = self._place(participant)
        return None if place is None else self.blocks[place[0]][place[1]]

    def put(self, member: Member) -> "Roster":
        """A roster with `member` in place of the entry with the same participant.

        Raises:
            KeyError: the participant is not a member.
        """
        place = self._place(member.participant)
        if place is None:
            raise KeyError(member.participant)
        i, j = place
        block = self.blocks[i]
        before = block[j]
        old, new = before.status, member.status
        changed = (*block[:j], member, *block[j + 1 :])
        return Roster(
            (*self.blocks[:i], changed, *self.blocks[i + 1 :]),
            outstanding=self.outstanding + (new in OUTSTANDING) - (old in OUTSTANDING),
            silent=self.silent + (new is MemberStatus.SILENT) - (old is MemberStatus.SILENT),
            reported=self.reported + (new is MemberStatus.REPORTED) - (old is MemberStatus.REPORTED),
            rejected=self.rejected + (new is MemberStatus.REJECTED) - (old is MemberStatus.REJECTED),
            awaited=self.awaited + _is_awaited(member) - _is_awaited(before),
            missed=self.missed + _is_missed(member) - _is_missed(before),
        )

    def outstanding_among(self, participants: Iterable[str] | None = None) -> Iterator[str]:
        """Participants INVITED or TRAINING, among all members or among the named ones."""
        members = self if participants is None else map(self.get, participants)
        return (m.participant for m in members if m is not None and m.status in OUTSTANDING)

    def changed_since(self, before: "Roster") -> set[str]:
        """Participants whose entry differs from ``before``, or that only one of the two rosters has.

        For two states of one round the cost is the number of blocks plus the members of changed blocks.
        """
        if len(self.blocks) != len(before.blocks):
            return {m.participant for roster in (before, self) for m in roster}
        changed = ((old, new) for old, new in zip(before.blocks, self.blocks, strict=True) if old is not new)
        return {
            m.participant
            for old, new in changed
            for one, other in zip_longest(old, new)
            if one is not other
            for m in (one, other)
            if m is not None
        }

    def with_status(self, *statuses: MemberStatus) -> tuple[str, ...]:
        """Participants in any of these statuses, in order."""
        return tuple(m.participant for m in self if m.status in statuses)
