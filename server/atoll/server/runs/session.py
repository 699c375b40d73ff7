"""One participant's session: what it declared at check-in, and the instructions queued for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.runs.instructions import Instruction
from atoll.server.runs.outbox import Outbox
from atoll.wire.encoding import Encoding
from atoll.wire.v1 import participation_pb2

log = logging.getLogger(__name__)
ComeBack = participation_pb2.ComeBack

OUTBOX_MESSAGES = 64
"""Maximum number of instructions queued for a slow participant; one more closes its stream, and it reconnects."""
CUT_S = 2.0
"""Seconds after which the session of a closed stream ends, even if its participant does not read the queued messages.

The stream itself stays until they are read or given up like every unread message (``Limits.unread_s``), since uploads
may continue over the same connection.
"""


@dataclass(frozen=True, slots=True)
class Introduction:
    """A participant's declarations at check-in; ``unary`` if by a single call, not by a stream."""

    examples: int
    encodings: frozenset[Encoding]
    can_evaluate: bool
    client_version: str = ""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    resuming: frozenset[tuple[str, int, int]] = frozenset()
    unary: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """A participant's enrolment: its organisation and project."""

    organisation: str = ""
    project: str = DEFAULT_PROJECT


UNKNOWN = Membership()
"""The membership of a participant whose enrolment is not known."""


@dataclass(eq=False, slots=True)
class Session:
    """One open check-in stream, or one unary check-in while it waits in its call.

    Attributes:
        participant: its id.
        introduction: what it declared at check-in.
        outbox: instructions to send; None ends the stream.
        counted_from: epoch second up to which its connected time is in its history.
        cut: ends the session at once, even if the participant reads nothing.
        spread_for: number of participants that its latest return spread suffices for.
        organisation: the participant's organisation, by enrolment.
        through: id of the aggregator that its stream ends at; empty: it ends here.
        away_s: seconds that the participant was asked to stay away when its session ended; infinite with a task.
        project: the participant's project; only its runs draw the participant.
    """

    participant: str
    introduction: Introduction
    outbox: Outbox
    counted_from: float
    cut: Callable[[], None]
    spread_for: int = 0
    organisation: str = ""
    through: str = ""
    away_s: float = 0.0
    project: str = DEFAULT_PROJECT
    _cutting: asyncio.TimerHandle | None = None

    def send(self, message: Instruction) -> bool:
        """Queue an instruction; returns False, and closes the stream, if the participant does not keep up."""
        try:
            self.outbox.put(message)
        except asyncio.QueueFull:
            log.warning("participant does not read its instructions", extra={"participant": self.participant})
            self.close()
            return False
        return True

    def close(self, message: participation_pb2.CheckInResponse | None = None) -> None:
        """End the stream after what is queued, or at once if the queue is full; ``message`` is sent last."""
        for last in (message, None) if message is not None else (None,):
            if self.outbox.full:
                self.outbox.take()
            self.outbox.put(last)
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().call_later(CUT_S, self.cut)

    def ended(self) -> None:
        """Note that the stream has ended: cancel the pending cut."""
        if self._cutting is not None:
            self._cutting.cancel()


def come_back(cause: ComeBack.Cause.ValueType, after_s: float, reason: str) -> participation_pb2.CheckInResponse:
    """The instruction to disconnect and return later."""
    order = ComeBack(cause=cause, after_s=after_s, reason=reason)
    return participation_pb2.CheckInResponse(come_back=order)
