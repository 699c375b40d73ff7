"""Relays the check-in streams of a gateway's participants: their messages go up, instructions come down."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from atoll.server.identity import DEFAULT_PROJECT
from atoll.server.runs.instructions import Invitation
from atoll.server.runs.session import ComeBack, Introduction, Membership, Session, come_back
from atoll.server.runs.sessions import Sessions
from atoll.wire.status import ErrorDetail, Recovery, detail_from_proto
from atoll.wire.v1 import gateway_pb2, participation_pb2, tensors_pb2

log = logging.getLogger(__name__)

Key = tuple[str, int, int]
OUTBOX = 65_536
"""Maximum number of messages that wait for the link, beyond the first ones; more make it break and reconnect."""
MAX_REPLIES = 16
"""Maximum number of a participant's replies, one for each round, that are repeated after a lost link."""
REFUSED_S = 5.0
"""Seconds after which a participant that the server has temporarily refused tries again."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A participant's certificate (PEM), its expiry in epoch seconds, and the participant's project."""

    pem: bytes
    not_after: float
    project: str = DEFAULT_PROJECT


@dataclass(eq=False)
class _Relayed:
    """One participant's stream.

    Attributes:
        session: the session in this process.
        number: its number on the current link; 0 if there is no link or the server has ended the session.
        resuming: rounds that the participant is working on.
        replies: its latest reply to each round.
    """

    session: Session
    number: int = 0
    resuming: set[Key] = field(default_factory=set)
    replies: OrderedDict[Key, participation_pb2.TaskReply] = field(default_factory=OrderedDict)


class Relay:
    """Handles participants' messages (``rpc.check_in_api.CheckInApi``). Only the event loop uses it.

    While there is no link, participants stay connected, and their messages wait.

    Args:
        sessions: the sessions of this process.
        certificate_of: returns the certificate of a connected participant.
        clock: epoch seconds.
    """

    def __init__(
        self, sessions: Sessions, certificate_of: Callable[[str], Certified], clock: Callable[[], float]
    ) -> None:
        self._sessions = sessions
        self._certificate_of = certificate_of
        self._clock = clock
        self._members: dict[str, _Relayed] = {}
        self._by_number: dict[int, _Relayed] = {}
        self._numbers = itertools.count(1)
        self._outbox: asyncio.Queue[gateway_pb2.AttendRequest | None] | None = None
        self._most = math.inf
        self._parts: dict[int, bytes] = {}
        sessions.listen(connected=self._connected, disconnected=self._disconnected)

    def __len__(self) -> int:
        return len(self._members)

    async def project_of(self, participant: str) -> str:
        """See ``CheckInApi``: the project that the server stated when it identified the participant."""
        return self._certificate_of(participant).project

    async def introduced(self, participant: str, introduction: Introduction) -> Membership:
        """See ``CheckInApi``; the server learns of it once the session is open."""
        del introduction
        return Membership(project=await self.project_of(participant))

    async def replied(self, participant: str, reply: participation_pb2.TaskReply) -> None:
        """See ``CheckInApi``."""
        member = self._members.get(participant)
        if member is None:
            return
        key = _key_of(reply.key)
        member.replies.pop(key, None)
        member.replies[key] = reply
        while len(member.replies) > MAX_REPLIES:
            member.resuming.discard(member.replies.popitem(last=False)[0])
        if reply.verdict == participation_pb2.TaskReply.VERDICT_ACCEPTED:
            member.resuming.add(key)
        else:
            member.resuming.discard(key)
        if member.number:
            self._send(gateway_pb2.AttendRequest(reply=gateway_pb2.SessionReply(session=member.number, reply=reply)))

    def expects(self, participant: str) -> bool:
        """See ``CheckInApi``."""
        member = self._members.get(participant)
        return member is not None and bool(member.resuming)

    def certificate_remaining_s(self, participant: str) -> float:
        """See ``CheckInApi``."""
        return max(0.0, self._certificate_of(participant).not_after - self._clock())

    def reported(self, participant: str, key: Key) -> None:
        """Note that the server has acknowledged the participant's report, which ends its work on the round."""
        member = self._members.get(participant)
        if member is not None:
            member.resuming.discard(key)
            member.replies.pop(key, None)

    def attach(self) -> asyncio.Queue[gateway_pb2.AttendRequest | None]:
        """Attach a new link: returns the queue that it sends from, filled with all sessions. None ends the link."""
        outbox: asyncio.Queue[gateway_pb2.AttendRequest | None] = asyncio.Queue()
        self._outbox, self._most = outbox, math.inf
        for member in self._members.values():
            self._open(member)
        self._most = outbox.qsize() + OUTBOX
        return outbox

    def detach(self) -> None:
        """Detach a lost link."""
        self._outbox = None
        self._by_number.clear()
        self._parts.clear()
        for member in self._members.values():
            member.number = 0

    def take(self, response: gateway_pb2.AttendResponse) -> None:
        """Handle one message of the server."""
        match response.WhichOneof("message"):
            case "shared":
                self._parts[response.shared.number] = response.shared.content
            case "invitation":
                said = response.invitation
                member, part = self._by_number.get(said.session), self._parts.get(said.shared)
                if member is not None and part is not None:
                    member.session.send(Invitation(part, said.own))
            case "instruction":
                self._instructed(response.instruction)
            case "ended":
                self._ended(response.ended)
            case _:
                pass

    def _instructed(self, message: gateway_pb2.SessionInstruction) -> None:
        member, said = self._by_number.get(message.session), message.instruction
        if member is None:
            return
        match said.WhichOneof("message"):
            case "stop":
                key = _key_of(said.stop.key)
                member.resuming.discard(key)
                member.replies.pop(key, None)
                member.session.send(said)
            case "come_back" if said.come_back.cause == ComeBack.CAUSE_STOPPING:
                self._forget_number(member)  # when the link returns, so does the participant
            case "come_back":
                self._forget_number(member)
                member.session.close(said)
            case "return_spread":
                pass  # participants return to this process, which tells them when
            case _:
                member.session.send(said)

    def _ended(self, message: gateway_pb2.SessionEnded) -> None:
        member = self._by_number.get(message.session)
        if member is None:
            return
        self._forget_number(member)
        if not message.HasField("error"):
            member.session.close()
            return
        detail = detail_from_proto(message.error)
        log.warning("the server ends the session of %s: %s", member.session.participant, detail)
        member.session.close(come_back(ComeBack.CAUSE_UNSPECIFIED, _wait_s(detail), str(detail)))

    def _connected(self, session: Session) -> None:
        older = self._members.get(session.participant)
        if older is not None:
            self._close(older)
        member = self._members[session.participant] = _Relayed(session)
        member.resuming = set(session.introduction.resuming)
        if self._outbox is not None:
            self._open(member)

    def _disconnected(self, session: Session) -> None:
        member = self._members.get(session.participant)
        if member is not None and member.session is session:
            del self._members[session.participant]
            self._close(member)

    def _open(self, member: _Relayed) -> None:
        member.number = next(self._numbers)
        self._by_number[member.number] = member
        hello = hello_of(member.session.introduction)
        hello.resuming.extend(
            participation_pb2.RoundKey(run=run, round=at, attempt=attempt)
            for run, at, attempt in sorted(member.resuming)
        )
        opened = gateway_pb2.SessionOpened(
            session=member.number,
            certificate_pem=self._certificate_of(member.session.participant).pem,
            hello=hello,
        )
        self._send(gateway_pb2.AttendRequest(opened=opened))
        for reply in member.replies.values():
            self._send(gateway_pb2.AttendRequest(reply=gateway_pb2.SessionReply(session=member.number, reply=reply)))

    def _close(self, member: _Relayed) -> None:
        if member.number:
            self._send(gateway_pb2.AttendRequest(closed=gateway_pb2.SessionClosed(session=member.number)))
        self._forget_number(member)

    def _forget_number(self, member: _Relayed) -> None:
        self._by_number.pop(member.number, None)
        member.number = 0

    def _send(self, message: gateway_pb2.AttendRequest) -> None:
        if self._outbox is None:
            return
        if self._outbox.qsize() >= self._most:
            log.warning("the server does not read participants' messages; reconnecting")
            self._outbox.put_nowait(None)
            self._outbox = None
            return
        self._outbox.put_nowait(message)


def hello_of(introduction: Introduction) -> participation_pb2.Hello:
    """The hello of a participant, without the rounds that it resumes."""
    return participation_pb2.Hello(
        protocol=1,
        client_version=introduction.client_version,
        examples=introduction.examples,
        labels=introduction.labels,
        encodings=[tensors_pb2.Encoding.ValueType(item) for item in sorted(introduction.encodings)],
        can_evaluate=introduction.can_evaluate,
    )


def _wait_s(detail: ErrorDetail) -> float:
    if detail.recovery is Recovery.ENROL:
        return 60.0
    return max(REFUSED_S, detail.retry_after_s or 0.0)


def _key_of(key: participation_pb2.RoundKey) -> Key:
    return key.run, key.round, key.attempt
