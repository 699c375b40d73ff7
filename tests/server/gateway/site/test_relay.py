"""The relay of check-in streams: no message is lost or wrong when the link breaks and comes back."""

import asyncio

import pytest

from atoll.server.gateway.site import relay
from atoll.server.gateway.site.relay import Certified, Relay
from atoll.server.runs.instructions import Invitation
from atoll.server.runs.session import ComeBack, Introduction, Session, come_back
from atoll.server.runs.sessions import Sessions
from atoll.wire.encoding import Encoding
from atoll.wire.status import ErrorDetail, Fault
from atoll.wire.v1 import gateway_pb2, participation_pb2

HELLO = Introduction(5, frozenset({Encoding.FLOAT32}), can_evaluate=True, labels={"site": "north"})
KEY = participation_pb2.RoundKey(run="r1", round=3)
VERDICTS = participation_pb2.TaskReply


class Rig:
    """A relay over sessions, with one participant connected."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.relay = Relay(self.sessions, lambda name: Certified(name.encode(), 100.0), lambda: 40.0)
        self.session = self.connect()

    def connect(self, introduction: Introduction = HELLO) -> Session:
        return self.sessions.connect("p1", introduction, lambda: None)

    async def reply(self, verdict: participation_pb2.TaskReply.Verdict.ValueType) -> None:
        await self.relay.replied("p1", participation_pb2.TaskReply(key=KEY, verdict=verdict))


@pytest.fixture
async def rig() -> Rig:
    return Rig()


def said(outbox: asyncio.Queue[gateway_pb2.AttendRequest | None]) -> list[gateway_pb2.AttendRequest]:
    found = [outbox.get_nowait() for _ in range(outbox.qsize())]
    return [message for message in found if message is not None]


def messages_of(session: Session) -> list[object]:
    return [session.outbox.take() for _ in range(len(session.outbox))]


async def test_a_link_begins_with_everyone_who_is_there(rig: Rig) -> None:
    (opened,) = said(rig.relay.attach())
    assert opened.opened.certificate_pem == b"p1"
    hello = opened.opened.hello
    assert (hello.examples, hello.can_evaluate, dict(hello.labels)) == (5, True, {"site": "north"})
    assert rig.relay.certificate_remaining_s("p1") == 60.0


async def test_after_a_lost_link_accepted_rounds_are_resumed_and_replies_repeated(rig: Rig) -> None:
    rig.relay.attach()
    await rig.reply(VERDICTS.VERDICT_ACCEPTED)
    rig.relay.detach()
    opened, reply = said(rig.relay.attach())
    assert list(opened.opened.hello.resuming) == [KEY]
    assert reply.reply.reply.verdict == VERDICTS.VERDICT_ACCEPTED
    assert reply.reply.session == opened.opened.session


async def test_what_is_said_without_a_link_is_said_later(rig: Rig) -> None:
    await rig.reply(VERDICTS.VERDICT_FAILED)
    opened, reply = said(rig.relay.attach())
    assert list(opened.opened.hello.resuming) == []
    assert reply.reply.reply.verdict == VERDICTS.VERDICT_FAILED


async def test_a_reported_or_stopped_round_is_not_resumed(rig: Rig) -> None:
    outbox = rig.relay.attach()
    number = said(outbox)[0].opened.session
    await rig.reply(VERDICTS.VERDICT_ACCEPTED)
    rig.relay.reported("p1", ("r1", 3, 0))
    rig.relay.detach()
    (opened,) = said(rig.relay.attach())
    assert list(opened.opened.hello.resuming) == []
    await rig.reply(VERDICTS.VERDICT_ACCEPTED)
    number = opened.opened.session
    stop = participation_pb2.CheckInResponse(stop=participation_pb2.Stop(key=KEY))
    rig.relay.take(
        gateway_pb2.AttendResponse(instruction=gateway_pb2.SessionInstruction(session=number, instruction=stop))
    )
    assert messages_of(rig.session) == [stop]
    rig.relay.detach()
    assert len(said(rig.relay.attach())) == 1


async def test_the_shared_part_of_invitations_is_one_object_for_all(rig: Rig) -> None:
    number = said(rig.relay.attach())[0].opened.session
    rig.relay.take(gateway_pb2.AttendResponse(shared=gateway_pb2.SharedPart(number=2, content=b"shared")))
    invitation = gateway_pb2.SessionInvitation(session=number, shared=2, own=b"own")
    rig.relay.take(gateway_pb2.AttendResponse(invitation=invitation))
    assert messages_of(rig.session) == [Invitation(b"shared", b"own")]


async def test_a_newer_stream_of_a_participant_replaces_its_older_one_upstream_too(rig: Rig) -> None:
    outbox = rig.relay.attach()
    older = said(outbox)[0].opened.session
    rig.connect()
    rig.sessions.disconnect(rig.session)
    closed, opened = said(outbox)
    assert closed.closed.session == older != opened.opened.session
    assert len(rig.relay) == 1


async def test_a_server_that_stops_leaves_participants_connected(rig: Rig) -> None:
    number = said(rig.relay.attach())[0].opened.session
    stopping = come_back(ComeBack.CAUSE_STOPPING, 1.0, "")
    instruction = gateway_pb2.SessionInstruction(session=number, instruction=stopping)
    rig.relay.take(gateway_pb2.AttendResponse(instruction=instruction))
    rig.relay.take(gateway_pb2.AttendResponse(ended=gateway_pb2.SessionEnded(session=number)))
    assert messages_of(rig.session) == []
    assert rig.sessions.get("p1") is rig.session


async def test_one_that_the_server_does_not_admit_is_told_why(rig: Rig) -> None:
    number = said(rig.relay.attach())[0].opened.session
    error = ErrorDetail("gateway.binding", Fault.CALLER, "not here").to_proto()
    rig.relay.take(gateway_pb2.AttendResponse(ended=gateway_pb2.SessionEnded(session=number, error=error)))
    message, end = messages_of(rig.session)
    assert isinstance(message, participation_pb2.CheckInResponse)
    assert (message.come_back.reason, end) == ("not here", None)


async def test_a_link_begins_however_much_there_is_to_say(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "OUTBOX", 2)
    for number in range(5):
        key = participation_pb2.RoundKey(run="r1", round=number)
        await rig.relay.replied("p1", participation_pb2.TaskReply(key=key, verdict=VERDICTS.VERDICT_DECLINED))
    outbox = rig.relay.attach()
    for _ in range(2):
        await rig.reply(VERDICTS.VERDICT_ACCEPTED)
    assert outbox.qsize() == len(said(outbox)) == 8
    for _ in range(9):
        await rig.reply(VERDICTS.VERDICT_ACCEPTED)
    found = [outbox.get_nowait() for _ in range(outbox.qsize())]
    assert found[-1] is None, "the link ends, and the next one begins with everything"
    rig.relay.detach()
    assert len(said(rig.relay.attach())) == 6
