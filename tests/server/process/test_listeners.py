"""The server's listeners: ports, and the certificate that gRPC gets at each handshake."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from atoll.server.config.limits import Limits
from atoll.server.errors import SetupError
from atoll.server.identity import Authority, AuthorityError, ServerKeyPair
from atoll.server.process import listeners
from atoll.server.process.listeners import Port, add_health_and_reflection, bind, make_server, server_credentials
from tests.patience import WAIT_S
from tests.ping_proxy import PingProxy

DAY_S = 86_400.0
Fetch = Callable[[], object]


def test_grpc_gets_a_certificate_only_when_it_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returning the same one again would replace it at every handshake, under other threads, which crashed servers."""
    fetches: list[Fetch] = []
    made: list[str] = []

    def take(first: object, fetch: Fetch, **_: object) -> None:
        del first
        fetches.append(fetch)

    def make(pairs: list[tuple[bytes, bytes]], **_: object) -> str:
        made.append(pairs[0][1].decode())
        return f"configuration {len(made)}"

    now = time.time()
    clock = [now]
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", take)
    monkeypatch.setattr(grpc, "ssl_server_certificate_configuration", make)
    monkeypatch.setattr(listeners, "_CERTIFICATE_CHECK_S", 0.0)
    authority = Authority.open(tmp_path, now=now)
    listeners.server_credentials(authority, ["localhost"], mutual=True, clock=lambda: clock[0])

    (fetch,) = fetches
    assert [fetch(), fetch()] == [None, None]
    pair: ServerKeyPair = authority.server_key_pair(["localhost"], now=now)
    clock[0] = pair.not_after - DAY_S
    assert fetch() == "configuration 2"
    assert fetch() is None
    assert len(set(made)) == 2


@pytest.fixture
async def server() -> AsyncIterator[grpc.aio.Server]:
    """Return a server that answers health checks, to be bound and started."""
    made = make_server(Port.MAIN)
    await add_health_and_reflection(made, [])
    yield made
    await made.stop(None)


async def shake_hands(port: int, ca: bytes) -> None:
    """Make a new connection and one call."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(ca)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        await check(b"", timeout=WAIT_S)


async def test_the_certificate_is_renewed_while_serving(
    server: grpc.aio.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [time.time() - 80 * DAY_S]
    authority = Authority.open(tmp_path, now=clock[0])
    credentials = server_credentials(authority, ["127.0.0.1"], mutual=False, clock=lambda: clock[0])
    port = bind(server, "127.0.0.1", 0, credentials)
    await server.start()
    first = (tmp_path / "server.pem").read_bytes()
    monkeypatch.setattr(listeners, "_CERTIFICATE_CHECK_S", 0.0)
    await shake_hands(port, authority.certificate_pem)
    assert (tmp_path / "server.pem").read_bytes() == first
    clock[0] += 80 * DAY_S
    await shake_hands(port, authority.certificate_pem)
    assert (tmp_path / "server.pem").read_bytes() != first
    await shake_hands(port, authority.certificate_pem)


async def test_a_certificate_that_cannot_be_renewed_stays(
    server: grpc.aio.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority.open(tmp_path, now=time.time())
    port = bind(server, "127.0.0.1", 0, server_credentials(authority, ["127.0.0.1"], mutual=False, clock=time.time))
    await server.start()
    monkeypatch.setattr(listeners, "_CERTIFICATE_CHECK_S", 0.0)

    def refuse(*_: object, **__: object) -> None:
        raise AuthorityError("disk full")

    monkeypatch.setattr(authority, "server_key_pair", refuse)
    with caplog.at_level(logging.WARNING):
        await shake_hands(port, authority.certificate_pem)
    assert "could not be renewed; the old one stays: disk full" in caplog.text


@pytest.mark.parametrize("kind", [Port.MAIN, Port.TRANSFER])
async def test_a_silent_connection_is_pinged_at_the_interval_of_the_port(kind: Port) -> None:
    server = make_server(kind, ping_s=0.05)
    await add_health_and_reflection(server, [])
    port = bind(server, "127.0.0.1", 0, None)
    await server.start()
    try:
        async with (
            PingProxy(port) as network,
            grpc.aio.insecure_channel(network.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel,
        ):
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            await check(b"", timeout=WAIT_S)
            await network.until(lambda: network.connections[0].server.pings >= 2)
    finally:
        await server.stop(None)


@pytest.mark.parametrize(("kind", "shared"), [(Port.MAIN, False), (Port.ENROLMENT, False), (Port.TRANSFER, True)])
async def test_a_port_is_shared_only_by_those_who_mean_to(kind: Port, shared: bool) -> None:
    one, other = make_server(kind), make_server(kind)
    try:
        port = bind(one, "127.0.0.1", 0, None)
        if shared:
            assert bind(other, "127.0.0.1", port, None) == port
        else:
            with pytest.raises(SetupError, match=f"127.0.0.1:{port}"):
                bind(other, "127.0.0.1", port, None)
    finally:
        await one.stop(None)
        await other.stop(None)


async def test_connections_to_the_enrolment_port_are_few_and_do_not_linger() -> None:
    """Admitted connections are greeted; silent ones are closed long before gRPC's own two minutes.

    There are twice as many places as the front accepts connections, since closed ones may still be open here.
    """
    server = make_server(Port.ENROLMENT, Limits(enrolment_connections=2, handshake_s=8.0))
    port = bind(server, "127.0.0.1", 0, None)
    await server.start()

    async def heard() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        said = await reader.read()  # to the end
        writer.close()
        return said

    try:
        async with asyncio.timeout(WAIT_S):
            greetings = await asyncio.gather(*(heard() for _ in range(6)))
    finally:
        await server.stop(None)
    assert sum(bool(said) for said in greetings) == 4
