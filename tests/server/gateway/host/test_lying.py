"""An aggregator that lies: it may say what it likes of its own participants, and nothing of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.server.gateway.host import attendance
from atoll.wire.join_token import JoinToken
from atoll.wire.v1 import (
    control_pb2,
    enrolment_pb2,
    gateway_pb2,
    ingest_pb2,
    participation_pb2,
    tensors_pb2,
    transfer_pb2,
)
from atoll.wire.v1.gateway_pb2_grpc import GatewayServiceStub
from atoll.wire.v1.ingest_pb2_grpc import CoordinatorServiceStub
from tests.patience import WAIT_S
from tests.server.rpc.world import Caller, Key, Participant, World, job, refused_code, update_values

FORBIDDEN = ("PERMISSION_DENIED", "gateway.binding")
NO_VERDICT = participation_pb2.TaskReply.Verdict.ValueType(77)
ACCEPTED = participation_pb2.TaskReply.VERDICT_ACCEPTED
UPDATE = {"upload_id": "0" * 32, "digest": "ab" * 32, "weight": 10}


class Aggregator(Caller):
    """An aggregator of the test's own making, with its stream open."""

    def __init__(self, world: World, channel: Any, name: str) -> None:
        super().__init__(channel)
        self.world = world
        self.name = name
        self.coordinator: Any = CoordinatorServiceStub(channel)
        stub: Any = GatewayServiceStub(channel)
        self.attending = stub.Attend()
        self.parts: dict[int, bytes] = {}

    @classmethod
    async def of(cls, world: World) -> Aggregator:
        kind = enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR
        answer, key = await _enrolled(world, kind=kind, hosts=["127.0.0.1"])
        made = cls(world, await world.channel(key.pem, answer.certificate_pem), answer.participant)
        hello = gateway_pb2.GatewayHello(protocol=1, enrolment_address=world.addresses.enrolment)
        await made.say(hello=hello)
        assert (await made.hear()).HasField("welcome")
        return made

    async def participant(self) -> Participant:
        """A participant that is bound to it."""
        answer, key = await _enrolled(self.world, kind=enrolment_pb2.PARTICIPANT_KIND_EDGE, through=self.name)
        channel = await self.world.channel(key.pem, answer.certificate_pem)
        return Participant(channel, answer.participant, key, answer.certificate_pem)

    async def say(self, **message: Any) -> None:
        await asyncio.wait_for(self.attending.write(gateway_pb2.AttendRequest(**message)), WAIT_S)

    async def hear(self) -> gateway_pb2.AttendResponse:
        found = await asyncio.wait_for(self.attending.read(), WAIT_S)
        assert isinstance(found, gateway_pb2.AttendResponse), "the stream ended"
        if found.HasField("shared"):
            self.parts[found.shared.number] = found.shared.content
        return found

    async def open(self, number: int, whom: Participant) -> None:
        hello = participation_pb2.Hello(protocol=1, examples=10, encodings=[tensors_pb2.ENCODING_FLOAT32])
        opened = gateway_pb2.SessionOpened(session=number, certificate_pem=whom.certificate, hello=hello)
        await self.say(opened=opened)

    async def reply(self, number: int, key: participation_pb2.RoundKey, verdict: Any) -> None:
        reply = participation_pb2.TaskReply(key=key, verdict=verdict)
        await self.say(reply=gateway_pb2.SessionReply(session=number, reply=reply))

    async def ended(self, number: int) -> str:
        """Wait until the server has ended a session; the code of the error, if there is one."""
        while not (said := await self.hear()).HasField("ended") or said.ended.session != number:
            assert said.WhichOneof("message") in ("shared", "invitation", "instruction"), said
        return said.ended.error.code

    async def invited(self, number: int) -> participation_pb2.Participate:
        """Wait for an invitation to a session."""
        while not (said := await self.hear()).HasField("invitation") or said.invitation.session != number:
            pass
        shared = self.parts[said.invitation.shared]
        return participation_pb2.Participate.FromString(shared + said.invitation.own)

    def commit(self, who: str, key: participation_pb2.RoundKey, report: Any = None, **fields: Any) -> Any:
        report = transfer_pb2.ReportRequest(round=key, **(UPDATE | (report or {})))
        request = ingest_pb2.CommitRequest(participant=who, report=report, **fields)
        return self.coordinator.Commit(request, timeout=WAIT_S)


async def _enrolled(world: World, **wanted: Any) -> tuple[enrolment_pb2.EnrolResponse, Key]:
    request = control_pb2.CreateTokenRequest(organisation="north", lifetime_s=600.0, count=1, **wanted)
    made, key = await world.operator.control.CreateToken(request, timeout=WAIT_S), Key()
    return await world.enrol_with(JoinToken.decode(made.tokens[0]), key), key


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data", silence_s=600.0) as opened:
        yield opened


@pytest.fixture
async def north(world: World) -> Aggregator:
    return await Aggregator.of(world)


async def test_it_speaks_for_no_participant_of_another_site_or_of_none(world: World, north: Aggregator) -> None:
    south = await Aggregator.of(world)
    run = await world.submit(job(size=2))
    direct, other = await world.participant(), await south.participant()
    await south.open(1, other)
    async with direct.check_in() as stream:
        key = (await stream.next("participate")).key
        assert (await south.invited(1)).key.run == run
        for whom in (direct, other):
            who, calls = whom.name, north.coordinator
            identify = ingest_pb2.IdentifyRequest(certificate_pem=whom.certificate)
            assert await refused_code(calls.Identify(identify)) == FORBIDDEN
            upload = ingest_pb2.GrantUploadRequest(participant=who, round=key)
            assert await refused_code(calls.GrantUpload(upload)) == FORBIDDEN
            for role in ("participant", "operator", "aggregator"):
                download = ingest_pb2.GrantDownloadRequest(role=role, name=who, blob="00" * 32)
                assert await refused_code(calls.GrantDownload(download)) == FORBIDDEN
            assert await refused_code(north.commit(who, key)) == FORBIDDEN
            assert await refused_code(north.commit(who, key, rejection="bad")) == FORBIDDEN
            assert await refused_code(north.commit(who, key, late=True)) == FORBIDDEN
            await north.open(9, whom)
            assert await north.ended(9) == "gateway.binding"
        receipt = await direct.report(key, update_values(1))
        assert receipt.disposition == transfer_pb2.ReportResponse.DISPOSITION_COUNTED


async def test_a_bad_reply_of_one_participant_ends_its_session_and_no_other(north: Aggregator) -> None:
    first, second = await north.participant(), await north.participant()
    await north.open(1, first)
    await north.open(2, second)
    run = await north.world.submit(job(size=2))
    key = (await north.invited(1)).key
    await north.reply(1, key, NO_VERDICT)
    assert await north.ended(1) == "reply.verdict"
    await north.open(3, first)
    assert (await north.invited(3)).key.run == run


async def test_too_many_replies_of_one_participant_end_its_session_and_no_other(north: Aggregator) -> None:
    first, second = await north.participant(), await north.participant()
    await north.open(1, first)
    key = participation_pb2.RoundKey(run="r1")
    for _ in range(north.world.config.limits.replies_per_task + 1):
        await north.reply(1, key, ACCEPTED)
    assert await north.ended(1) == "reply.count"
    await north.world.submit(job())
    await north.open(2, second)
    assert (await north.invited(2)).key.round == 0


async def test_a_session_beyond_the_most_is_refused_and_no_other(
    north: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attendance, "MAX_SESSIONS", 1)
    first, second = await north.participant(), await north.participant()
    await north.open(1, first)
    await north.open(2, second)
    assert await north.ended(2) == "gateway.sessions"
    await north.world.submit(job())
    assert (await north.invited(1)).key.round == 0


async def test_the_gateway_hears_of_a_session_that_the_server_cuts(north: Aggregator) -> None:
    whom = await north.participant()
    await north.open(1, whom)
    await north.world.submit(job())
    await north.invited(1)
    session = north.world.daemon._sessions.get(whom.name)
    assert session is not None
    session.cut()
    assert await north.ended(1) == ""
    assert north.world.daemon._sessions.get(whom.name) is None
