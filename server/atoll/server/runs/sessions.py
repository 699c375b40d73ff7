"""The sessions of all connected participants, by id, organisation and project."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator

from atoll.server.config.check_in_settings import DEFAULT_CHECK_INS, CheckInSettings
from atoll.server.errors import UnavailableError
from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.runs.outbox import Outbox
from atoll.server.runs.pace_steering import PaceSteering
from atoll.server.runs.return_spread import ReturnSpread, return_spread_s
from atoll.server.runs.session import OUTBOX_MESSAGES, UNKNOWN, ComeBack, Introduction, Membership, Session, come_back
from atoll.wire.v1 import participation_pb2

COME_BACK_S = 2.0
"""Minimum seconds for which a stopping server sends participants away."""
SPREADS_AT_ONCE = 50
SPREADS_EVERY_S = 0.05
"""A new return spread is sent in batches: number of participants in each, and seconds between two."""
STOPPING = "the server is stopping"
TAKEN_OVER_S = 10.0
"""Minimum seconds between two replacements of a session by another process with the same identity."""

Listener = Callable[[Session], None]


class Changes:
    """Participants that have changed since the last ``take``; initially all.

    Attributes:
        takes_unary: whether the run that waits may draw participants without a stream.
        project: of the run that waits.
    """

    def __init__(self, *, takes_unary: bool = True, project: str = DEFAULT_PROJECT) -> None:
        self.takes_unary = takes_unary
        self.project = project
        self._event = asyncio.Event()
        self._participants: set[str] | None = None

    def note(self, participants: Collection[str]) -> None:
        """Note participants that connected, disconnected, became free or busy."""
        if self._participants is not None:
            self._participants.update(participants)
        self._event.set()

    def take(self) -> set[str] | None:
        """Take the changed participants; None: all. Call it before looking at them, to miss no change."""
        found, self._participants = self._participants, set()
        self._event.clear()
        return found

    async def wait(self) -> None:
        """Wait for a change since the last ``take``."""
        await self._event.wait()


class ProjectSessions:
    """The sessions of one project's participants. Single-threaded like ``Sessions``, which changes it.

    Attributes:
        has_unary: whether a participant of the project has checked in without a stream.
    """

    def __init__(self) -> None:
        self.has_unary = False
        self._sessions: dict[str, Session] = {}
        self._organisations: dict[str, dict[str, Session]] = {}

    def get(self, participant: str) -> Session | None:
        """The participant's session; None while it is not connected, or for another project's."""
        return self._sessions.get(participant)

    def named(self, name: str) -> list[Session]:
        """The sessions of the participants with this id or of this organisation."""
        found = list(self._organisations.get(name, {}).values())
        one = self._sessions.get(name)
        return found if one is None or one.organisation == name else [*found, one]

    def count_of(self, organisation: str) -> int:
        """Number of open sessions of an organisation's participants."""
        return len(self._organisations.get(organisation, ()))

    def all(self) -> list[Session]:
        """Every open session. Takes time linear in their number: call it once per draw, never per event."""
        return list(self._sessions.values())

    def names(self) -> list[str]:
        """Ids of the connected participants."""
        return list(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def put(self, session: Session) -> None:
        """Add a session."""
        self.has_unary |= session.introduction.unary
        self._sessions[session.participant] = session
        self._organisations.setdefault(session.organisation, {})[session.participant] = session

    def remove(self, session: Session) -> None:
        """Remove a session that was added."""
        del self._sessions[session.participant]
        there = self._organisations[session.organisation]
        del there[session.participant]
        if not there:
            del self._organisations[session.organisation]


class Sessions:
    """All sessions of this process. Single-threaded: only the event loop touches it.

    Args:
        clock: epoch seconds.
        check_ins: how often participants check in.

    Attributes:
        pace: when participants without a stream check in again.
    """

    def __init__(self, clock: Callable[[], float] = time.time, check_ins: CheckInSettings = DEFAULT_CHECK_INS) -> None:
        self.pace = PaceSteering(clock, check_ins)
        self._clock = clock
        self._streams = 0
        self._sessions: dict[str, Session] = {}
        self._projects: dict[str, ProjectSessions] = {}
        self._through: dict[str, set[str]] = {}
        self._watchers: set[Changes] = set()
        self._spread = ReturnSpread(clock)
        self._outdated: list[str] = []
        self._sending: asyncio.Handle | None = None
        self._sent_away: int | None = None
        self._reason = STOPPING
        self._come_back_s = COME_BACK_S
        self._connected: list[Listener] = []
        self._disconnected: list[Listener] = []

    @property
    def streams(self) -> int:
        """Number of participants with an open stream."""
        return self._streams

    def listen(self, *, connected: Listener, disconnected: Listener) -> None:
        """Call these when a participant connects or disconnects."""
        self._connected.append(connected)
        self._disconnected.append(disconnected)

    def connect(
        self,
        participant: str,
        introduction: Introduction,
        cut: Callable[[], None],
        membership: Membership = UNKNOWN,
        through: str = "",
    ) -> Session:
        """Open a session that ``cut`` ends at once; close an older one of the same participant.

        Raises:
            UnavailableError: once the server is stopping (``leave``); says when to try again.
        """
        if self._sent_away is not None:
            raise UnavailableError("server.stopping", self._reason, "try again", retry_after_s=self._next_return_s())
        outbox = Outbox(OUTBOX_MESSAGES)
        session = Session(
            participant,
            introduction,
            outbox,
            self._clock(),
            cut,
            organisation=membership.organisation,
            through=through,
            project=membership.project,
        )
        older = self._sessions.get(participant)
        if older is not None:
            older.close(
                come_back(ComeBack.CAUSE_TAKEN_OVER, TAKEN_OVER_S, "another connection of this participant took over")
            )
        self.admit(session)
        return session

    def leave(self, reason: str = STOPPING, *, come_back_s: float = COME_BACK_S) -> None:
        """Prepare to stop: send participants away with spread return times, and admit none.

        Participants stay away for ``come_back_s`` or longer.

        Sessions at gateways stay: their participants do not move, and their gateway connects to the next server.
        """
        self._sent_away, self._reason, self._come_back_s = 0, reason, come_back_s
        for session in self.all():
            if not session.through:
                session.close(come_back(ComeBack.CAUSE_STOPPING, self._next_return_s(), reason))

    def _next_return_s(self) -> float:
        """Seconds after which the next participant that is sent away returns."""
        place = self._sent_away or 0
        self._sent_away = place + 1
        return self._come_back_s + return_spread_s(place)

    def admit(self, session: Session) -> None:
        """Add an open session and call the listeners."""
        older = self._sessions.get(session.participant)
        if older is not None:
            self._remove(older)
        self._streams += not session.introduction.unary
        self._sessions[session.participant] = session
        self.of(session.project).put(session)
        if session.through:
            self._through.setdefault(session.through, set()).add(session.participant)
        self._follow_population()
        session.spread_for = self._spread.suffices_for  # its welcome message has the spread
        for listener in self._connected:
            listener(session)
        self.touch((session.participant,))

    def disconnect(self, session: Session) -> None:
        """Forget a session whose stream has ended, unless a newer session has replaced it."""
        session.ended()
        if self._sessions.get(session.participant) is session:
            del self._sessions[session.participant]
            self._remove(session)
            self._follow_population()
            for listener in self._disconnected:
                listener(session)
            self.touch((session.participant,))

    def get(self, participant: str) -> Session | None:
        """The participant's session; None while it is not connected."""
        return self._sessions.get(participant)

    def of(self, project: str) -> ProjectSessions:
        """The sessions of a project's participants."""
        return self._projects.setdefault(project, ProjectSessions())

    def through(self, aggregator: str) -> Collection[str]:
        """Ids of the participants whose streams end at this aggregator."""
        return self._through.get(aggregator, frozenset())

    def all(self) -> list[Session]:
        """Every open session. Takes time linear in their number: never call it per event."""
        return list(self._sessions.values())

    def names(self) -> list[str]:
        """Ids of the connected participants."""
        return list(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def return_spread_s(self) -> float:
        """Seconds over which connected participants spread their return."""
        return self._spread.seconds

    def holds_unary(self, project: str) -> bool:
        """Whether a unary check-in should wait in its call: a run that may draw it looks for participants."""
        return any(watcher.takes_unary and watcher.project == project for watcher in self._watchers)

    def _remove(self, session: Session) -> None:
        self._streams -= not session.introduction.unary
        self._projects[session.project].remove(session)
        there = self._through.get(session.through, set())
        there.discard(session.participant)
        if not there:
            self._through.pop(session.through, None)

    def _follow_population(self) -> None:
        if self._spread.adjust(self._streams):
            self._outdated = self.names()
            if self._sending is None:
                self._sending = asyncio.get_running_loop().call_soon(self._send_spreads)

    def _send_spreads(self) -> None:
        """Send the new spread to one batch of participants, and schedule the next batch."""
        spread = self._spread
        message = participation_pb2.CheckInResponse(
            return_spread=participation_pb2.ReturnSpread(return_spread_s=spread.seconds)
        )
        sent = 0
        while self._outdated and sent < SPREADS_AT_ONCE:
            session = self._sessions.get(self._outdated.pop())
            if session is None or session.introduction.unary:
                continue
            if session.spread_for != spread.suffices_for:
                session.spread_for = spread.suffices_for
                session.send(message)
                sent += 1
        self._sending = None
        if self._outdated:
            self._sending = asyncio.get_running_loop().call_later(SPREADS_EVERY_S, self._send_spreads)

    def touch(self, participants: Collection[str] = ()) -> None:
        """Wake the runs that wait for a draw, since these participants became free or busy."""
        for watcher in self._watchers:
            watcher.note(participants)

    @contextlib.contextmanager
    def watch(self, *, takes_unary: bool = True, project: str = DEFAULT_PROJECT) -> Iterator[Changes]:
        """Collect changes in the context; ``takes_unary`` also holds the project's unary check-ins meanwhile."""
        changes = Changes(takes_unary=takes_unary, project=project)
        self._watchers.add(changes)
        try:
            yield changes
        finally:
            self._watchers.discard(changes)
