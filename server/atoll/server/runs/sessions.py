"""Who is connected: one session per participant, and the instructions queued for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from atoll.server.runs.instructions import Instruction
from atoll.server.runs.return_spread import ReturnSpread
from atoll.wire.encoding import Encoding
from atoll.wire.v1 import participation_pb2

log = logging.getLogger(__name__)
ComeBack = participation_pb2.ComeBack

OUTBOX_MESSAGES = 64
"""Instructions that may wait for a slow participant; one more closes its stream (it comes back and is told anew)."""
CUT_S = 2.0
"""The session of a closed stream whose participant does not read what is left is over after so many seconds.

The stream itself stays until what is left is read, or is given up with its connection as every unread message is
(``Limits.unread_s``): the participant's uploads may go on over the same connection.
"""
TOLD_AT_ONCE = 50
TOLD_EVERY_S = 0.05
"""A change that concerns everybody connected is told to so many, and to the next ones so much later."""
TAKEN_OVER_S = 10.0
"""Two processes with one identity replace each other no faster than this."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a participant said of itself when it checked in."""

    examples: int
    encodings: frozenset[Encoding]
    can_evaluate: bool
    client_version: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    resuming: frozenset[tuple[str, int, int]] = frozenset()


@dataclass(eq=False, slots=True)
class Session:
    """One open check-in stream.

    Attributes:
        participant: who is at the other end.
        introduction: what it said of itself.
        outbox: instructions on their way to it; None ends the stream.
        counted_from: epoch seconds from which its time online is not yet in its history.
        cut: ends the session at once, even if its participant reads nothing.
        spread_for: participants that the spread suffices for which it was told.
    """

    participant: str
    introduction: Introduction
    outbox: asyncio.Queue[Instruction | None]
    counted_from: float
    cut: Callable[[], None]
    spread_for: int = 0
    _cutting: asyncio.TimerHandle | None = None

    def send(self, message: Instruction) -> bool:
        """Queue an instruction; False if the participant does not keep up and its stream is to be closed."""
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("participant does not read its instructions", extra={"participant": self.participant})
            self.close()
            return False
        return True

    def close(self, message: participation_pb2.CheckInResponse | None = None) -> None:
        """End the stream after what is queued, or at once if the queue is full; ``message`` is a last word."""
        for last in (message, None) if message is not None else (None,):
            if self.outbox.full():
                self.outbox.get_nowait()
            self.outbox.put_nowait(last)
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().call_later(CUT_S, self.cut)

    def ended(self) -> None:
        """The stream has ended by itself; there is nothing left to cut."""
        if self._cutting is not None:
            self._cutting.cancel()


Listener = Callable[[Session], None]


class Changes:
    """What has changed about participants since somebody last looked; begins with all of them."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._participants: set[str] | None = None

    def note(self, participants: Collection[str]) -> None:
        """These came, went, became free or busy."""
        if self._participants is not None:
            self._participants.update(participants)
        self._event.set()

    def take(self) -> set[str] | None:
        """The participants to look at anew; None: all. Take it before you look, to miss nothing."""
        found, self._participants = self._participants, set()
        self._event.clear()
        return found

    async def wait(self) -> None:
        """Until something changes, or has changed since the last ``take``."""
        await self._event.wait()


class Sessions:
    """All sessions of this process. Single-threaded: only the event loop touches it.

    Args:
        clock: epoch seconds, from which time online is counted.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._watchers: set[Changes] = set()
        self._spread = ReturnSpread(clock)
        self._untold: list[str] = []
        self._telling: asyncio.Handle | None = None
        self._connected: list[Listener] = []
        self._disconnected: list[Listener] = []

    def listen(self, *, connected: Listener, disconnected: Listener) -> None:
        """Be told of participants that come and go."""
        self._connected.append(connected)
        self._disconnected.append(disconnected)

    def connect(self, participant: str, introduction: Introduction, cut: Callable[[], None]) -> Session:
        """Open a session, which ``cut`` ends at once; an older one of the same participant is closed."""
        queue: asyncio.Queue[Instruction | None] = asyncio.Queue(OUTBOX_MESSAGES)
        session = Session(participant, introduction, queue, self._clock(), cut)
        older = self._sessions.get(participant)
        if older is not None:
            older.close(
                come_back(ComeBack.CAUSE_TAKEN_OVER, TAKEN_OVER_S, "another connection of this participant took over")
            )
        self.admit(session)
        return session

    def admit(self, session: Session) -> None:
        """Add an open session, and tell those who listen."""
        self._sessions[session.participant] = session
        self._follow_population()
        session.spread_for = self._spread.suffices_for  # its welcome tells it
        for listener in self._connected:
            listener(session)
        self.touch((session.participant,))

    def disconnect(self, session: Session) -> None:
        """Forget a session whose stream has ended, unless a newer one has taken its place."""
        session.ended()
        if self._sessions.get(session.participant) is session:
            del self._sessions[session.participant]
            self._follow_population()
            for listener in self._disconnected:
                listener(session)
            self.touch((session.participant,))

    def get(self, participant: str) -> Session | None:
        """The participant's session, None while it is not connected."""
        return self._sessions.get(participant)

    def all(self) -> list[Session]:
        """Every open session."""
        return list(self._sessions.values())

    def names(self) -> list[str]:
        """The participants that are connected."""
        return list(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def return_spread_s(self) -> float:
        """Seconds over which those connected are asked to spread their return."""
        return self._spread.seconds

    def _follow_population(self) -> None:
        if self._spread.adjust(len(self._sessions)):
            self._untold = self.names()
            if self._telling is None:
                self._telling = asyncio.get_running_loop().call_soon(self._tell_some)

    def _tell_some(self) -> None:
        """Tell the spread to some who were told another, and to the next ones a little later."""
        spread = self._spread
        message = participation_pb2.CheckInResponse(
            return_spread=participation_pb2.ReturnSpread(return_spread_s=spread.seconds)
        )
        told = 0
        while self._untold and told < TOLD_AT_ONCE:
            session = self._sessions.get(self._untold.pop())
            if session is not None and session.spread_for != spread.suffices_for:
                session.spread_for = spread.suffices_for
                session.send(message)
                told += 1
        self._telling = None
        if self._untold:
            self._telling = asyncio.get_running_loop().call_later(TOLD_EVERY_S, self._tell_some)

    def touch(self, participants: Collection[str] = ()) -> None:
        """Wake the runs that wait for their draw; these participants became free or busy."""
        for watcher in self._watchers:
            watcher.note(participants)

    @contextlib.contextmanager
    def watch(self) -> Iterator[Changes]:
        """What changes from now on."""
        changes = Changes()
        self._watchers.add(changes)
        try:
            yield changes
        finally:
            self._watchers.discard(changes)


def come_back(cause: ComeBack.Cause.ValueType, after_s: float, reason: str) -> participation_pb2.CheckInResponse:
    """The instruction to leave and come back later."""
    order = ComeBack(cause=cause, after_s=after_s, reason=reason)
    return participation_pb2.CheckInResponse(come_back=order)
