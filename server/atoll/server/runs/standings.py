"""The number of connected participants that a waiting run could draw, updated as participants change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from atoll.server.runs.session import Session
from atoll.server.runs.sessions import Changes, ProjectSessions


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a run can draw one connected participant.

    Attributes:
        free: it could be drawn now.
        idle: no other run expects a report from it or has just drawn it.
        unfit: it cannot send the run's encoding, so the run never draws it.
        resting: a limit on participation keeps it out of this draw.
    """

    free: bool
    idle: bool
    unfit: bool
    resting: bool


@dataclass
class Count:
    """For each field of ``Standing``, the number of connected participants for which it is true."""

    free: int = 0
    idle: int = 0
    unfit: int = 0
    resting: int = 0

    def add(self, one: Standing, times: int) -> None:
        """Add (``times`` 1) or remove (-1) one participant."""
        self.free += times * one.free
        self.idle += times * one.idle
        self.unfit += times * one.unfit
        self.resting += times * one.resting


Taken = Callable[[Collection[str] | None], Collection[str]]
Judge = Callable[[Session, Collection[str]], Standing]


@dataclass
class Standings:
    """Counts participants by their standing with one run.

    A participant is judged when the wait begins, and again whenever it changes. With thousands connected, a waiting run
    must not judge all of them each time that one reports to another run.

    Args:
        sessions: who is connected.
        changes: participants that have changed, including those of other projects.
        taken: returns which of these participants (None: of all) are taken by other runs.
        judge: returns the standing of a session, given the participants that are taken.
    """

    sessions: ProjectSessions
    changes: Changes
    taken: Taken
    judge: Judge
    _known: dict[str, Standing] = field(default_factory=dict)
    _count: Count = field(default_factory=Count)

    def count(self) -> Count:
        """The counts now."""
        changed = self.changes.take()
        if changed is None:
            self._known, self._count = {}, Count()
            self._judge([session.participant for session in self.sessions.all()], self.taken(None))
        elif changed:
            self._judge(changed, self.taken(changed))
        return self._count

    def _judge(self, participants: Iterable[str], taken: Collection[str]) -> None:
        for participant in participants:
            before = self._known.pop(participant, None)
            if before is not None:
                self._count.add(before, -1)
            session = self.sessions.get(participant)
            if session is not None:
                now = self._known[participant] = self.judge(session, taken)
                self._count.add(now, 1)
