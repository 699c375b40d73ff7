"""Check-ins of participants without a stream: one call returns a task, or the time to return.

During the call the participant has a session like any other, and can be drawn. A run thus draws unary participants from
those that are waiting in their calls, and nothing else in the engine differs. The call is held only while a run looks
for participants, and for a limited time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from atoll.server.errors import InvalidRequestError
from atoll.server.rpc.authentication import Authenticator, Context
from atoll.server.rpc.check_in_api import CheckInApi
from atoll.server.rpc.introductions import bounded, introduction_of
from atoll.server.rpc.return_gate import ReturnGate
from atoll.server.rpc.sending_room import SendingRoom
from atoll.server.runs.instructions import Instruction, Invitation, UnaryAnswer
from atoll.server.runs.project_pace import NextReturn
from atoll.server.runs.session import Session
from atoll.server.runs.sessions import Sessions
from atoll.wire.v1 import participation_pb2

MAX_REPLIES = 16
INVITE_S = 10.0
"""Additional seconds that a participant is held if a run has just drawn it and its invitation is on its way."""


class UnaryCheckIns:
    """The handler of ``CheckInOnce``.

    Args:
        sessions: who is connected.
        coordinator: receives participants' messages.
        authenticator: the port's authenticator.
        gate: admits check-ins at the rate that the server can handle.
        sending: room for invitations being sent.
        welcome: makes the welcome message of a session's participant.
    """

    def __init__(
        self,
        sessions: Sessions,
        coordinator: CheckInApi,
        authenticator: Authenticator,
        gate: ReturnGate,
        sending: SendingRoom,
        welcome: Callable[[Session], participation_pb2.Welcome],
    ) -> None:
        self._sessions = sessions
        self._coordinator = coordinator
        self._authenticator = authenticator
        self._gate = gate
        self._sending = sending
        self._welcome = welcome

    async def CheckInOnce(self, request: participation_pb2.CheckInOnceRequest, context: Context) -> UnaryAnswer:
        """Take the answers to earlier tasks, wait for a task if a run may have one, and send the time to return."""
        participant = await self._authenticator.participant(context)
        project = await self._coordinator.project_of(participant)
        self._gate.admit(participant, project, at_work=self._coordinator.expects(participant))
        await self._authenticator.admission.check_in(participant)
        introduction = introduction_of(request.hello, unary=True)
        replies = self._counted(participant, request)
        membership = await self._coordinator.introduced(participant, introduction)
        for reply in replies:
            await self._coordinator.replied(participant, bounded(reply))
        # the handler may have waited for the database: no await between this check and the session
        await self._authenticator.identify(context)
        session = self._sessions.connect(
            participant, introduction, lambda: self._sessions.disconnect(session), membership
        )
        try:
            instructions = await self._instructions(session, self._hold_s(request, session))
            following = _following(instructions, self._sessions.pace.of(project).next_return(participant))
            has_task = bool(introduction.resuming) or any(isinstance(one, Invitation) for one in instructions)
            session.away_s = math.inf if has_task else following.after_s
        finally:
            self._sessions.disconnect(session)
        head = participation_pb2.CheckInOnceResponse(
            welcome=self._welcome(session),
            return_after_s=following.after_s,
            return_when_done=following.when_done,
        )
        await self._make_room(sum(one.size for one in instructions if isinstance(one, Invitation)), context)
        return UnaryAnswer(head, tuple(instructions))

    async def _make_room(self, size: int, context: Context) -> None:
        """Wait until an answer with invitations of ``size`` bytes may be sent."""
        if not size:
            return
        await self._sending.acquire(size)
        sent: Any = lambda _: self._sending.release(size)  # noqa: E731 - gRPC's stubs take no function
        context.add_done_callback(sent)

    def _counted(
        self, participant: str, request: participation_pb2.CheckInOnceRequest
    ) -> list[participation_pb2.TaskReply]:
        """The answers to tasks; each counts as a call."""
        if len(request.replies) > MAX_REPLIES:
            raise InvalidRequestError(
                "checkin.replies", f"{len(request.replies)} answers to tasks in one call; at most {MAX_REPLIES}"
            )
        for _ in request.replies:
            self._authenticator.admission.reply(participant)
        return list(request.replies)

    def _hold_s(self, request: participation_pb2.CheckInOnceRequest, session: Session) -> float:
        """Seconds to wait for a task; 0 for a participant at work, or while no run looks for participants."""
        if session.introduction.resuming or not self._sessions.holds_unary(session.project):
            return 0.0
        remaining_s = self._coordinator.certificate_remaining_s(session.participant)
        allowed_s = min(max(0.0, request.wait_s), self._sessions.pace.settings.hold_s)
        return min(allowed_s, remaining_s) if remaining_s >= 0 else allowed_s

    async def _instructions(self, session: Session, hold_s: float) -> list[Instruction]:
        found = _waiting(session)
        if not found and hold_s:
            found = await _held(session, hold_s)
            if not found and self._coordinator.expects(session.participant):
                found = await _held(session, INVITE_S)
        return found


async def _held(session: Session, seconds: float) -> list[Instruction]:
    """Wait for the next instruction or the end of the session."""
    try:
        async with asyncio.timeout(seconds):
            first = await session.outbox.get()
    except TimeoutError:
        return []
    return [] if first is None else [first, *_waiting(session)]


def _waiting(session: Session) -> list[Instruction]:
    """The queued instructions of the participant."""
    found: list[Instruction] = []
    while session.outbox and (message := session.outbox.take()) is not None:
        found.append(message)
    return found


def _following(instructions: list[Instruction], paced: NextReturn) -> NextReturn:
    """The time to return; a stopping server, or another call of the participant, may already have set it."""
    for one in instructions:
        if isinstance(one, participation_pb2.CheckInResponse) and one.HasField("come_back"):
            return NextReturn(one.come_back.after_s, when_done=False)
    return paced
