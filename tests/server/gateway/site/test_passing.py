"""A gateway's calls to the server's enrolment port, when the server is gone without a FIN or RST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atoll.server.errors import ServerError, UnavailableError
from atoll.server.gateway.site import passing
from atoll.server.gateway.site.passing import EnrolmentPort
from atoll.wire.v1 import enrolment_pb2
from tests.patience import WAIT_S
from tests.server.rpc.world import World
from tests.system.proxy import Proxy

REQUEST = enrolment_pb2.RenewExpiredRequest(certificate_pem=b"none")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path / "data") as opened:
        yield opened


async def connected(address: str, world: World) -> EnrolmentPort:
    """A connection over which the server has answered, by a refusal."""
    port = EnrolmentPort(address, world.ca)
    with pytest.raises(ServerError) as refused:
        await passing._renew_expired(port, REQUEST)
    assert not isinstance(refused.value, UnavailableError)
    return port


async def test_a_silent_server_is_noticed_before_the_callers_time_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise this call and each later one would take all of its time, for as long as TCP repeats its segments."""
    pinging = dict(passing._OPTIONS) | {"grpc.keepalive_time_ms": 500, "grpc.http2.ping_timeout_ms": 500}
    assert pinging.keys() == dict(passing._OPTIONS).keys()
    monkeypatch.setattr(passing, "_OPTIONS", tuple(pinging.items()))
    monkeypatch.setattr(passing, "CALL_S", WAIT_S)
    with Proxy(world.addresses.enrolment) as proxy:
        port = await connected(proxy.address, world)
        proxy.darken()
        with pytest.raises(UnavailableError, match="does not answer: UNAVAILABLE"):
            await passing._renew_expired(port, REQUEST)
        await port.close()


async def test_a_call_fails_at_once_when_its_connection_is_closed(world: World) -> None:
    """The gateway turns to another server: a caller without a status would wait for its own time limit."""
    with Proxy(world.addresses.enrolment) as proxy:
        port = await connected(proxy.address, world)
        proxy.darken()
        waiting = asyncio.create_task(passing._renew_expired(port, REQUEST))
        await asyncio.sleep(0)  # it has called
        await port.close()
        with pytest.raises(UnavailableError, match="ended before it answered"):
            await waiting
