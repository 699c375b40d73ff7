"""A fake aggregator at a real server, which sends and answers whatever a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from atoll.wire.v1 import (
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
from tests.server.rpc.world import Caller, Key, Participant, World

UPDATE = {"upload_id": "0" * 32, "digest": "ab" * 32, "weight": 10}


class Aggregator(Caller):
    """A fake aggregator with an open stream."""

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
        answer, key = await enrolled(world, kind=kind, hosts=["127.0.0.1"], aggregator=True)
        made = cls(world, await world.channel(key.pem, answer.certificate_pem), answer.participant)
        hello = gateway_pb2.GatewayHello(protocol=1, enrolment_address=world.addresses.enrolment)
        await made.say(hello=hello)
        assert (await made.hear()).HasField("welcome")
        return made

    async def participant(self) -> Participant:
        """A participant that is bound to it."""
        answer, key = await enrolled(self.world, kind=enrolment_pb2.PARTICIPANT_KIND_EDGE, through=self.name)
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


@contextlib.contextmanager
def short_lived(world: World, lifetime_s: float) -> Iterator[None]:
    """Issue certificates with this lifetime, which is shorter than the configuration allows."""
    gateways = world.daemon._ports.gateways
    assert gateways is not None
    issuer = gateways._issuers.newcomers._certificates
    before, issuer._lifetime_s = issuer._lifetime_s, lifetime_s
    try:
        yield
    finally:
        issuer._lifetime_s = before


async def enrolled(world: World, *, aggregator: bool = False, **wanted: Any) -> tuple[enrolment_pb2.EnrolResponse, Key]:
    token, key = await world.token("north", **wanted), Key()
    return await world.enrol_with(token, key, aggregator=aggregator), key
