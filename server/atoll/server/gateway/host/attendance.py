"""The sessions of one gateway's participants, which runs treat like any other session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from atoll.server.errors import ForbiddenError, InvalidRequestError, LimitExceededError, ServerError
from atoll.server.gateway.host.bound_coordinator import BoundCoordinator
from atoll.server.gateway.host.gateways import Gateway
from atoll.server.identity import Role
from atoll.server.rpc.admission import Admission, Replies
from atoll.server.rpc.check_in_api import CheckInApi
from atoll.server.rpc.introductions import bounded, introduction_of
from atoll.server.runs.instructions import Instruction, Invitation
from atoll.server.runs.session import ComeBack, Session, come_back
from atoll.server.runs.sessions import Sessions
from atoll.wire.v1 import gateway_pb2

OUTBOX = 4096
"""Maximum number of queued instructions, over all sessions, that the gateway has not read."""
MAX_SESSIONS = 20_000
"""Maximum number of sessions of one gateway."""
CROWDED_S = 60.0
"""Seconds after which a participant beyond that maximum may try again."""
SHARED_PARTS = 16
"""Number of shared parts of invitations that a gateway caches."""


@dataclass(eq=False)
class _Member:
    """One session at the gateway; ``admitted`` gives the session here, or is cancelled if none is opened.

    Attributes:
        refused: why this server ends the session.
        announces_end: whether the gateway must be told that the session has ended.
    """

    number: int
    admitted: asyncio.Future[Session]
    replies: Replies
    task: asyncio.Task[None] | None = field(default=None)
    refused: ServerError | None = None
    announces_end: bool = False


class SharedParts:
    """Numbers the shared parts of invitations that a stream has sent; used by the stream's only sender."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._next = 0

    def messages(self, session: int, instruction: Instruction) -> Iterator[gateway_pb2.AttendResponse]:
        """An instruction as messages; a shared part is sent before the first invitation that uses it."""
        if not isinstance(instruction, Invitation):
            yield gateway_pb2.AttendResponse(
                instruction=gateway_pb2.SessionInstruction(session=session, instruction=instruction)
            )
            return
        number = self._numbers.get(instruction.shared)
        if number is None:
            number = self._next % SHARED_PARTS
            self._next += 1
            self._numbers = {part: at for part, at in self._numbers.items() if at != number}
            self._numbers[instruction.shared] = number
            yield gateway_pb2.AttendResponse(shared=gateway_pb2.SharedPart(number=number, content=instruction.shared))
        invitation = gateway_pb2.SessionInvitation(session=session, shared=number, own=instruction.own)
        yield gateway_pb2.AttendResponse(invitation=invitation)


class Attendance:
    """The sessions at one gateway while its stream lasts. Only the event loop uses it.

    Args:
        gateway: the gateway.
        sessions: the sessions of this server.
        check_ins: handles participants' messages.
        identities: identifies the participants that the gateway may speak for.
        admission: the limits of each participant.

    Attributes:
        replaced: whether a newer stream of the gateway has taken over.
    """

    def __init__(
        self,
        gateway: Gateway,
        sessions: Sessions,
        check_ins: CheckInApi,
        identities: BoundCoordinator,
        admission: Admission,
    ) -> None:
        self.outbox: asyncio.Queue[tuple[int, Instruction | ServerError | None] | None] = asyncio.Queue(OUTBOX)
        self.replaced = False
        self._gateway = gateway
        self._sessions = sessions
        self._check_ins = check_ins
        self._identities = identities
        self._admission = admission
        self._members: dict[int, _Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, request: gateway_pb2.AttendRequest) -> None:
        """Handle one message of the gateway. An error of one participant ends only that participant's session.

        Raises:
            InvalidRequestError: if the message is out of order.
        """
        match request.WhichOneof("message"):
            case "opened":
                await self._open(request.opened)
            case "reply":
                await self._replied(request.reply)
            case "closed":
                self._closed(request.closed.session)
            case _:
                raise InvalidRequestError("gateway.order", "after hello only sessions are expected on this stream")

    async def close(self) -> None:
        """End all sessions, since the gateway has disconnected."""
        tasks = list(self._tasks)
        for member in self._members.values():
            member.announces_end = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self, opened: gateway_pb2.SessionOpened) -> None:
        if opened.session in self._members:
            raise InvalidRequestError("gateway.session", f"session {opened.session} is open already")
        if len(self._members) >= MAX_SESSIONS:
            await self.outbox.put((opened.session, self._crowded()))
            return
        admitted: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        member = _Member(opened.session, admitted, Replies(self._admission.limits))
        self._members[opened.session] = member
        member.task = asyncio.create_task(self._serve(member, opened))
        self._tasks.add(member.task)
        member.task.add_done_callback(self._tasks.discard)

    async def _serve(self, member: _Member, opened: gateway_pb2.SessionOpened) -> None:
        """Admit a participant, and pass its instructions on until its session ends."""
        ending: ServerError | None = None
        try:
            session = await self._admit(member, opened)
            with _expiring(session, self._check_ins.certificate_remaining_s(session.participant)):
                member.admitted.set_result(session)
                while (instruction := await session.outbox.get()) is not None:
                    await self.outbox.put((member.number, instruction))
        except ServerError as error:
            ending = error
        except asyncio.CancelledError:
            if not member.announces_end:
                raise
            ending = member.refused
        finally:
            self._members.pop(member.number, None)
            if member.admitted.done():
                self._sessions.disconnect(member.admitted.result())
            else:
                member.admitted.cancel()
        await self.outbox.put((member.number, ending))

    async def _admit(self, member: _Member, opened: gateway_pb2.SessionOpened) -> Session:
        pem = opened.certificate_pem
        caller = await self._identities.identify(pem)
        if caller.role is not Role.PARTICIPANT:
            raise ForbiddenError("gateway.role", f"{caller.name} is not a participant")
        participant = caller.name
        await self._admission.check_in(participant)
        introduction = introduction_of(opened.hello)
        membership = await self._check_ins.introduced(participant, introduction)
        await self._identities.identify(pem)  # it may have been revoked meanwhile
        cut: Callable[[], None] = lambda: self._end(member, None)  # noqa: E731
        return self._sessions.connect(participant, introduction, cut, membership, self._gateway.through)

    async def _replied(self, message: gateway_pb2.SessionReply) -> None:
        member = self._members.get(message.session)
        if member is None:
            return  # the session has ended, but the gateway has not read that yet
        try:
            session = await asyncio.shield(member.admitted)
        except asyncio.CancelledError:
            if member.admitted.cancelled():
                return
            raise
        key = message.reply.key
        try:
            member.replies.count((key.run, key.round, key.attempt))
            self._admission.reply(session.participant)
            await self._check_ins.replied(session.participant, bounded(message.reply))
        except ServerError as error:
            self._end(member, error)

    def _closed(self, number: int) -> None:
        """Handle the end of a session by the gateway."""
        member = self._members.get(number)
        if member is not None and member.task is not None:
            member.task.cancel()

    def _end(self, member: _Member, error: ServerError | None) -> None:
        """End a session, and tell the gateway."""
        if member.task is not None and member.number in self._members:
            member.refused, member.announces_end = error, True
            member.task.cancel()

    def _crowded(self) -> ServerError:
        return LimitExceededError(
            "gateway.sessions",
            f"{self._gateway} has {MAX_SESSIONS} sessions",
            "start another one",
            CROWDED_S,
        )


@contextlib.contextmanager
def _expiring(session: Session, remaining_s: float) -> Iterator[None]:
    """Close the session when its participant's certificate expires."""
    message = come_back(ComeBack.CAUSE_CERTIFICATE, 0.0, "the certificate of this connection has expired")
    timer = asyncio.get_running_loop().call_later(max(0.0, remaining_s), session.close, message)
    try:
        yield
    finally:
        timer.cancel()
