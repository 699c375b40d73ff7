"""How the connected participants stand to a run that waits for its draw, brought up to date by what changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from atoll.server.runs.sessions import Changes, Session, Sessions


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds of one connected participant.

    Attributes:
        free: it could be drawn now.
        idle: no other run expects a report from it, nor has just drawn it.
        unfit: it cannot send the run's encoding, so it is never drawn.
        resting: a bound on participation keeps it from this draw.
    """

    free: bool
    idle: bool
    unfit: bool
    resting: bool


@dataclass
class Count:
    """How many of the connected participants each of ``Standing``'s fields holds of."""

    free: int = 0
    idle: int = 0
    unfit: int = 0
    resting: int = 0

    def add(self, one: Standing, times: int) -> None:
        """Count one participant in (``times`` 1) or out (-1)."""
        self.free += times * one.free
        self.idle += times * one.idle
        self.unfit += times * one.unfit
        self.resting += times * one.resting


Taken = Callable[[Collection[str] | None], Collection[str]]
Judge = Callable[[Session, Collection[str]], Standing]


@dataclass
class Standings:
    """Counts participants by how they stand to one run.

    A participant is judged once when the wait begins, and again when something about it changes: with thousands
    connected, a run that waits must not look at each of them whenever one of them reports to another run.

    Args:
        sessions: who is connected.
        changes: what changes, as ``sessions`` tells.
        taken: which of the named participants (None: of all) other runs have.
        judge: how a session stands, given which participants are taken.
    """

    sessions: Sessions
    changes: Changes
    taken: Taken
    judge: Judge
    _known: dict[str, Standing] = field(default_factory=dict)
    _count: Count = field(default_factory=Count)

    def count(self) -> Count:
        """How many stand how now."""
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
