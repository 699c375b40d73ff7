"""Accepts connections for a gRPC server on ports without client certificates, and shares them fairly by address.

gRPC closes connections beyond its maximum number, and does not know a connection's age or address before its first
call, so one address that holds all of them would keep all others out. Here the address with the most connections loses
its oldest one to an address with fewer. Bytes pass unchanged; TLS ends at the gRPC server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from atoll.server.errors import LimitExceededError
from atoll.server.ingest.transfer_meter import ignore
from atoll.server.process.listeners import port_taken
from atoll.server.rpc.connections import Connections
from atoll.server.rpc.peers import network_of
from atoll.server.telemetry.refusal_log import RefusalLog

log = logging.getLogger(__name__)

BEHIND = "127.0.0.1"
"""Address on which the gRPC server listens."""
_ANY_IPV4, _ANY_IPV6 = "0.0.0.0", "::"  # noqa: S104  # an operator's `host` may be the wildcard
_PIECE_BYTES = 1 << 14
_BACKLOG = 512
_CLOSE_S = 5.0
"""Seconds that a closed connection may take to send pending data before it is reset."""
ORIGIN_KEPT_S = 60.0
"""Seconds after a connection was closed in which the gRPC server may still begin calls from it."""


@dataclass(frozen=True, eq=False)
class _Origin:
    """The peer of one connection, as gRPC would name it."""

    peer: str


Crowded = Callable[[str, int, int], LimitExceededError]


def enrolment_crowded(address: str, held: int, most: int) -> LimitExceededError:
    """The error for an address that has the most connections to the enrolment port."""
    return LimitExceededError(
        "enrolment.connections",
        f"{address} has {held} of the {most} connections to the enrolment port; its oldest is closed",
        retry_after_s=1.0,
    )


class Front:
    """External connections, each joined to its own connection to the gRPC server. Only the event loop uses it.

    Args:
        most: maximum number of open connections.
        refused: called with the code of ``crowded`` for each connection that is closed to make room.
        crowded: makes the error for the address that loses its oldest connection, given the number it holds and the
            maximum.

    Attributes:
        connections: connections of the gRPC server, whose only caller is this front.
    """

    def __init__(
        self, most: int, refused: Callable[[str], None] = ignore, crowded: Crowded = enrolment_crowded
    ) -> None:
        self.connections = Connections()
        self._most = most
        self._refused = refused
        self._crowded = crowded
        self._refusals = RefusalLog(log)
        self._open: dict[str, dict[asyncio.Task[None], None]] = {}
        self._origins: dict[str, _Origin] = {}
        self._behind = 0
        self._server: asyncio.Server | None = None

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    async def bind(self, host: str, port: int, behind: int) -> int:
        """Listen on a port (0: any free one) and return it; connections wait until ``start``.

        Args:
            host: address to listen on.
            port: port to listen on.
            behind: the port of the gRPC server, on ``BEHIND``.

        Raises:
            SetupError: if the port cannot be opened.
        """
        both = socket.has_dualstack_ipv6()
        listening_on = _ANY_IPV6 if both and host == _ANY_IPV4 else host  # as gRPC interprets the wildcard
        six = ":" in listening_on
        try:
            listener = socket.create_server(
                (listening_on, port),
                family=socket.AF_INET6 if six else socket.AF_INET,
                backlog=_BACKLOG,
                dualstack_ipv6=six and both,
            )
        except OSError as error:
            raise port_taken(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") from error
        self._behind = behind
        self._server = await asyncio.start_server(self._take, sock=listener, start_serving=False)
        return int(listener.getsockname()[1])

    async def start(self) -> None:
        """Begin to accept connections."""
        if self._server is None:
            raise RuntimeError("bind first")
        await self._server.start_serving()

    async def close(self) -> None:
        """Accept no more connections, and close the open ones."""
        if self._server is not None:
            self._server.close()
        tasks = [task for tasks in self._open.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def origin(self, peer: str) -> str:
        """The peer of a call, named as gRPC would name it without this front."""
        found = self._origins.get(peer)
        return peer if found is None else found.peer

    async def enter(self, _: str, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """Admit a call (``rpc.port_bounds.Enter``); it is counted for the address of its connection."""
        return network_of(self.origin(context.peer()))

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection from its beginning to its end."""
        task, peer = asyncio.current_task(), _name_of(writer)
        network = network_of(peer)
        with contextlib.closing(writer):
            if task is None:
                raise RuntimeError("a connection is taken in a task")
            self._make_room(network)
            self._open.setdefault(network, {})[task] = None
            try:
                await self._join(peer, reader, writer)
            except (OSError, asyncio.CancelledError):
                writer.transport.abort()
            finally:
                try:
                    await _closed(writer)
                finally:
                    self._leave(network, task)

    def _make_room(self, network: str) -> None:
        """If there are too many connections, close the oldest of the network with the most (in a tie, of this one)."""
        if len(self) < self._most:
            return
        greediest = max(self._open, key=lambda name: len(self._open[name]))
        held = len(self._open[greediest])
        if held <= len(self._open.get(network, ())):
            greediest = network
        oldest = next(iter(self._open[greediest]))
        oldest.cancel()
        self._leave(greediest, oldest)  # at once, so that the next newcomer closes another one
        error = self._crowded(greediest, held, self._most)
        self._refused(error.detail.code)
        self._refusals.warn(greediest, error)

    def _leave(self, network: str, task: asyncio.Task[None]) -> None:
        tasks = self._open.get(network, {})
        tasks.pop(task, None)
        if not tasks:
            self._open.pop(network, None)

    def _forget(self, name: str, origin: _Origin) -> None:
        if self._origins.get(name) is origin:  # otherwise another connection already has the same port
            del self._origins[name]

    async def _join(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes both ways until either end closes."""
        inner_reader, inner_writer = await asyncio.open_connection(BEHIND, self._behind)
        host, port = inner_writer.get_extra_info("sockname")[:2]
        name = f"ipv4:{host}:{port}"
        origin = self._origins[name] = _Origin(peer)
        try:
            ways = [
                asyncio.ensure_future(_pass(reader, inner_writer)),
                asyncio.ensure_future(_pass(inner_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            inner_writer.close()
            asyncio.get_running_loop().call_later(ORIGIN_KEPT_S, self._forget, name, origin)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    await writer.drain()


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, even if its peer no longer reads."""
    writer.close()
    try:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


def _name_of(writer: asyncio.StreamWriter) -> str:
    """The peer, named as by gRPC; empty if it has disconnected."""
    found = writer.get_extra_info("peername")
    if not found:
        return ""
    host, port = found[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
