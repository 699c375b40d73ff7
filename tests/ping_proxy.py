"""A TCP proxy that counts the keepalive pings of plaintext HTTP/2 connections (RFC 9113, 6.7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from hyperframe.frame import Frame, PingFrame

from tests.patience import WAIT_S

_PREFACE_BYTES = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_HEADER_BYTES = 9


class Direction:
    """What one side of a connection sends.

    Attributes:
        pings: PING frames that are no answers.
    """

    def __init__(self, preface_bytes: int = 0) -> None:
        self.pings = 0
        self._left = b""
        self._skip = preface_bytes

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._left += data
        while len(self._left) >= self._skip + _HEADER_BYTES:
            frame, size = Frame.parse_frame_header(memoryview(self._left)[self._skip :][:_HEADER_BYTES])
            end = self._skip + _HEADER_BYTES + size
            if len(self._left) < end:
                return
            self.pings += isinstance(frame, PingFrame) and "ACK" not in frame.flags
            self._left, self._skip = self._left[end:], 0


@dataclass
class Connection:
    """One connection through the proxy."""

    client: Direction = field(default_factory=lambda: Direction(_PREFACE_BYTES))
    server: Direction = field(default_factory=Direction)


class PingProxy:
    """Forwards connections to a port of this machine.

    Attributes:
        connections: all so far, oldest first.
    """

    def __init__(self, port: int) -> None:
        self.connections: list[Connection] = []
        self._target = port
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    @property
    def address(self) -> str:
        assert self._listener is not None
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._join, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until bytes have come with which the condition holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def _join(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection("127.0.0.1", self._target)
        connection = Connection()
        self.connections.append(connection)
        for source, sink, heard in ((near, to_far, connection.client), (far, to_near, connection.server)):
            task = asyncio.create_task(self._pump(source, sink, heard))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, heard: Direction) -> None:
        with contextlib.suppress(ConnectionError):  # an end breaks the connection off
            while data := await source.read(1 << 16):
                heard.feed(data)
                self._news.set()
                sink.write(data)
                await sink.drain()
        sink.close()
