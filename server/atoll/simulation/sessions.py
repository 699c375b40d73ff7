"""Sessions of participants in this process, which pass instructions directly to the virtual participants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atoll.server.runs.instructions import Instruction
from atoll.server.runs.outbox import Outbox
from atoll.server.runs.session import Introduction, Session
from atoll.server.runs.sessions import Sessions

Deliver = Callable[[str, Instruction], None]


@dataclass(eq=False, slots=True)
class VirtualSession(Session):
    """A session without a stream."""

    deliver: Deliver = lambda _participant, _instruction: None

    def send(self, message: Instruction) -> bool:
        """See ``Session``."""
        self.deliver(self.participant, message)
        return True


class VirtualSessions(Sessions):
    """The simulated sessions; the simulation connects and disconnects participants.

    Args:
        clock: epoch seconds.
        deliver: called with each instruction.
    """

    def __init__(self, clock: Callable[[], float], deliver: Deliver) -> None:
        super().__init__(clock)
        self._deliver = deliver
        self._outbox = Outbox()

    def join(self, participant: str, introduction: Introduction, counted_from: float | None = None) -> None:
        """Connect a participant; its time online counts from now, or from an earlier epoch second."""
        since = self._clock() if counted_from is None else counted_from
        session = VirtualSession(participant, introduction, self._outbox, since, lambda: None, deliver=self._deliver)
        self.admit(session)

    def go_offline(self, participant: str) -> None:
        """Break its connection, if it has one."""
        session = self.get(participant)
        if session is not None:
            self.disconnect(session)
