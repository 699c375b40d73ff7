"""The front of ports without client certificates: which connections are closed if there is no room for all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from atoll.server.errors import SetupError
from atoll.server.process import front
from atoll.server.process.front import BEHIND, Front, _Origin
from tests.patience import WAIT_S

MOST = 4
ONE, OTHER = "127.0.0.1", "127.0.0.2"
"""Addresses that connections come from: all of 127.0.0.0/8 is this machine."""


class Connection:
    """An external connection to a server that names each connection's origin and then echoes its input."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen_from: str) -> None:
        self.reader = reader
        self.writer = writer
        self.seen_from = seen_from

    async def echo(self, text: bytes) -> bytes:
        self.writer.write(text)
        return await asyncio.wait_for(self.reader.readexactly(len(text)), WAIT_S)

    async def closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(self.reader.read(), WAIT_S) == b""


class Place:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self.refused: list[str] = []
        self.front = Front(MOST, self.refused.append)
        self.port = 0
        self.seen_at_the_end: list[str] = []
        self.ended = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Place:
        behind = await asyncio.start_server(self._echo, BEHIND, 0)
        self._stack.callback(behind.close)
        self.port = await self.front.bind(self._host, 0, behind.sockets[0].getsockname()[1])
        self._stack.push_async_callback(self.front.close)
        await self.front.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def come(self, address: str = ONE) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self._stack.callback(writer.close)
        writer.write(b"hello\n")
        origin = await asyncio.wait_for(reader.readline(), WAIT_S)
        return Connection(reader, writer, origin.decode().strip())

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        host, port = writer.get_extra_info("peername")
        writer.write(f"{self.front.origin(f'ipv4:{host}:{port}')}\n".encode())
        while piece := await reader.read(1 << 16):
            writer.write(piece)
        self.seen_at_the_end.append(self.front.origin(f"ipv4:{host}:{port}"))
        self.ended.set()
        writer.close()


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with Place() as made:
        yield made


async def test_bytes_pass_both_ways_and_the_origin_is_known(place: Place) -> None:
    connection = await place.come(OTHER)
    assert connection.seen_from == f"ipv4:{OTHER}:{connection.writer.get_extra_info('sockname')[1]}"
    text = bytes(range(256)) * 4096
    assert await connection.echo(text) == text


async def test_what_a_closed_connection_has_sent_still_counts_for_where_it_came_from(place: Place) -> None:
    """After the outside connection is gone, the server behind still reads, and may begin a call from those bytes."""
    connection = await place.come(OTHER)
    connection.writer.write(b"the beginning of a call")
    connection.writer.close()
    await asyncio.wait_for(place.ended.wait(), WAIT_S)
    assert place.seen_at_the_end == [connection.seen_from]


async def test_origins_are_forgotten_in_the_end_but_not_those_of_a_newer_connection(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "ORIGIN_KEPT_S", 0.0)
    connection = await place.come(OTHER)
    (name,) = place.front._origins
    newer = _Origin("ipv4:127.0.0.3:1")
    place.front._origins[name] = newer  # the system gives a port anew
    connection.writer.close()
    async with asyncio.timeout(WAIT_S):
        while len(place.front):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        assert place.front._origins == {name: newer}
        (await place.come()).writer.close()
        while len(place.front._origins) > 1:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
    assert place.front._origins == {name: newer}


async def test_the_address_with_most_loses_its_oldest_to_a_newcomer(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    greedy = [await place.come(OTHER) for _ in range(MOST)]
    with caplog.at_level(logging.WARNING):
        newcomer = await place.come(ONE)
    await greedy[0].closed()
    for connection in (*greedy[1:], newcomer):
        assert await connection.echo(b"still there") == b"still there"
    assert place.refused == ["enrolment.connections"]
    assert f"{OTHER} has {MOST} of the {MOST} connections" in caplog.text


async def test_a_burst_of_newcomers_closes_as_many(place: Place) -> None:
    """Each newcomer closes another connection, even before the closed ones have ended."""
    held = [await place.come(OTHER) for _ in range(MOST)]
    await asyncio.gather(*(place.come() for _ in range(3 * MOST)), return_exceptions=True)
    assert len(place.front) <= MOST
    for one in held[: MOST // 2]:
        await one.closed()


async def test_an_address_that_has_most_itself_makes_room_for_its_own(place: Place) -> None:
    modest = await place.come(ONE)
    greedy = [await place.come(OTHER) for _ in range(MOST)]
    await greedy[0].closed()
    for connection in (modest, *greedy[1:]):
        assert await connection.echo(b"still there") == b"still there"


async def test_a_connection_that_ends_frees_its_place(place: Place) -> None:
    for _ in range(3 * MOST):
        connection = await place.come()
        connection.writer.close()
        async with asyncio.timeout(WAIT_S):
            while len(place.front):  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0)
    assert not place.refused


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_the_wildcard_is_reached_over_ipv4_and_ipv6() -> None:
    async with Place("0.0.0.0") as place:  # noqa: S104
        assert await (await place.come()).echo(b"over IPv4")
        reader, writer = await asyncio.open_connection("::1", place.port)
        with contextlib.closing(writer):
            writer.write(b"hello\n")
            origin = await asyncio.wait_for(reader.readline(), WAIT_S)
            assert origin.decode().strip() == f"ipv6:[::1]:{writer.get_extra_info('sockname')[1]}"


async def test_a_port_in_use_is_reported(place: Place) -> None:
    with pytest.raises(SetupError, match="the port is taken"):
        await Front(1).bind("127.0.0.1", place.port, 1)
