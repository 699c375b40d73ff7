"""An aggregator's ports have the server's interval of keepalive pings, and its participants are told it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from atoll.server.aggregator import daemon
from atoll.server.aggregator.config import AggregatorConfig
from atoll.server.aggregator.daemon import AggregatorAddresses, AggregatorDaemon
from atoll.server.aggregator.ping_interval import PING_FILE, PingInterval
from atoll.server.process.listeners import Port, make_server
from atoll.wire.pacing import PING_S
from atoll.wire.v1 import enrolment_pb2, participation_pb2
from tests.patience import WAIT_S
from tests.server.gateway.host.gateways import enrolled
from tests.server.gateway.site.test_link import Site
from tests.server.rpc.world import Participant, Stream, World


@asynccontextmanager
async def aggregating(world: World, data: Path) -> AsyncIterator[AggregatorAddresses]:
    token = await world.token(kind=enrolment_pb2.PARTICIPANT_KIND_AGGREGATOR, hosts=["127.0.0.1"])
    config = AggregatorConfig(data=data, port=0, metrics=False, drain_s=0.0, upstream=world.addresses.main)
    aggregator = AggregatorDaemon(config, token.encode())
    addresses = await aggregator.start()
    link = aggregator._traffic.link
    assert link is not None
    try:
        async with asyncio.timeout(WAIT_S):
            while not link.up:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.01)
        yield addresses
    finally:
        await aggregator.stop()


async def welcomed(world: World, addresses: AggregatorAddresses) -> participation_pb2.Welcome:
    """The welcome of a participant that is bound to the aggregator."""
    answer, key = await enrolled(world, kind=enrolment_pb2.PARTICIPANT_KIND_EDGE, through=addresses.name)
    channel = await world.channel(key.pem, answer.certificate_pem, addresses.main)
    participant = Participant(channel, answer.participant, key, answer.certificate_pem)
    hello = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=1))
    stream = Stream(participant.participation.CheckIn(wait_for_ready=True))
    await stream.write(hello)
    welcome: participation_pb2.Welcome = await stream.next("welcome")
    stream.call.cancel()
    return welcome


async def test_it_tells_its_participants_what_its_server_told_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first start it asks before it opens its ports; at a later one it has kept the answer."""
    opened: list[float] = []

    def noted(port: Port, *arguments: Any, **more: Any) -> grpc.aio.Server:
        if port is Port.MAIN:
            opened.append(more["ping_s"])
        return make_server(port, *arguments, **more)

    monkeypatch.setattr(daemon, "make_server", noted)
    async with World(tmp_path / "data", ping_s=40.0) as world:
        async with aggregating(world, tmp_path / "site") as addresses:
            assert (await welcomed(world, addresses)).ping_s == 40.0
        async with aggregating(world, tmp_path / "site") as addresses:
            assert (await welcomed(world, addresses)).ping_s == 40.0
    assert opened == [40.0, 40.0]


async def test_a_link_says_what_the_server_states(tmp_path: Path) -> None:
    heard: list[float] = []
    async with World(tmp_path / "data", ping_s=40.0) as world:
        site = Site(world)
        site.link.hear_ping_s = heard.append
        await site.enrol()
        await site.connect()
        assert site.running is not None
        site.running.cancel()
    assert heard == [40.0]


def test_a_change_at_the_server_takes_effect_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = PingInterval(tmp_path)
    assert first.seconds == PING_S
    with caplog.at_level(logging.WARNING):
        first.hear(PING_S)
        assert caplog.text == ""
        first.hear(40.0)
        first.hear(40.0)
    assert (
        caplog.text.count("the server's ping_s is 40 now: restart this aggregator to use it; it has 10 until then") == 1
    )
    assert first.seconds == PING_S
    assert PingInterval(tmp_path).seconds == 40.0
    assert PingInterval(tmp_path, 20.0).seconds == PingInterval(tmp_path).seconds == 20.0


def test_an_interval_that_cannot_be_kept_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gone = tmp_path / "gone"
    pings = PingInterval(gone)
    with caplog.at_level(logging.WARNING):
        pings.hear(40.0)
    assert "cannot be kept, it is tried again later" in caplog.text
    gone.mkdir()
    pings.hear(40.0)
    assert PingInterval(gone).seconds == 40.0


@pytest.mark.parametrize("content", [b"", b"often", b"\xff"])
def test_a_damaged_file_is_not_used_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """As a participant does with its own (``tests/client/_session/test_ping_interval.py``)."""
    path = tmp_path / PING_FILE
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert PingInterval(tmp_path).seconds == PING_S
    assert f"{path} is not used" in caplog.text
    assert float(path.read_text()) == PING_S
