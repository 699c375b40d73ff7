"""A lying aggregator: it may claim anything about its own participants, and nothing about others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.server.gateway.host import attendance
from atoll.wire.v1 import (
    ingest_pb2,
    participation_pb2,
    transfer_pb2,
)
from tests.server.gateway.host.gateways import Aggregator
from tests.server.rpc.world import World, job, refused_code, update_values

pytestmark = pytest.mark.slow

FORBIDDEN = ("PERMISSION_DENIED", "gateway.binding")
NO_VERDICT = participation_pb2.TaskReply.Verdict.ValueType(77)
ACCEPTED = participation_pb2.TaskReply.VERDICT_ACCEPTED


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
