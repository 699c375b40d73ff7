"""A connected gateway that does not answer, whose certificate has expired, or that connected again counts as gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from atoll.server.gateway.host import service
from atoll.server.runs.sessions import TAKEN_OVER_S
from atoll.wire.status import detail_from_trailers
from atoll.wire.v1 import gateway_pb2
from atoll.wire.v1.gateway_pb2_grpc import GatewayServiceStub
from tests.patience import WAIT_S, window_s
from tests.server.gateway.host.gateways import Aggregator, short_lived
from tests.server.rpc.world import World, job


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data", silence_s=600.0) as opened:
        yield opened


async def read_to_the_end(call: Any) -> Any:
    """Read a stream until the server ends it; returns the status."""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()


async def loses_streams_and_sessions(north: Aggregator) -> None:
    """Open an aggregator's streams, with a participant in a round; the server ends them and its session."""
    world = north.world
    participant = await north.participant()
    await world.submit(job())
    await north.open(1, participant)
    await north.invited(1)
    working = GatewayServiceStub(north.channel).Work()
    await working.write(gateway_pb2.WorkRequest(hello=gateway_pb2.WorkHello()))
    for call in (working, north.attending):
        assert await read_to_the_end(call) is grpc.StatusCode.OK
    assert world.daemon._sessions.get(participant.name) is None


async def test_one_that_answers_no_question_loses_its_streams_and_its_sessions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "AGGREGATOR_SILENT_S", 0.2)
    north = await Aggregator.of(world)
    await loses_streams_and_sessions(north)


async def test_the_streams_of_one_end_with_its_certificate(world: World) -> None:
    with short_lived(world, window_s()):
        north = await Aggregator.of(world)
    await loses_streams_and_sessions(north)


async def test_the_stream_of_one_that_connects_a_second_time_ends_with_the_reason(world: World) -> None:
    north = await Aggregator.of(world)
    again = GatewayServiceStub(north.channel).Attend()
    await again.write(gateway_pb2.AttendRequest(hello=gateway_pb2.GatewayHello(protocol=1)))
    assert await read_to_the_end(north.attending) is grpc.StatusCode.UNAVAILABLE
    detail = detail_from_trailers(list(await north.attending.trailing_metadata()))
    assert detail is not None
    assert (detail.code, detail.retry_after_s) == ("gateway.taken_over", TAKEN_OVER_S)
    assert f"another process connected as aggregator {north.name}" in detail.message
