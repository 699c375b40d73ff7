"""A plain gRPC server with mutual TLS that only echoes: what a connection and a unary call cost without Atoll.

python -m benchmarks.plain_peer FOLDER     prints its port, serves until standard input ends
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from atoll.server.identity import Authority
from benchmarks.sampling import cpu_s_of, memory_of
from benchmarks.starting import piped

_SERVICE = "benchmarks.Plain"
_STREAM, _UNARY = f"/{_SERVICE}/Stream", f"/{_SERVICE}/Unary"
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
_WARM = 50


def idle_bytes(connections: int) -> float:
    """Bytes of the server's anonymous memory for each connection with an open stream, beyond the first few."""
    with _serving() as peer:
        return asyncio.run(_bytes_each(peer, connections))


def call_cpu_s(callers: int, calls: int, message: bytes) -> float:
    """Processor seconds of the server for each unary call that echoes ``message``, over kept connections."""
    with _serving() as peer:
        return asyncio.run(_cpu_of(peer, callers, calls, message)) / calls


@dataclass(frozen=True)
class _Peer:
    """A running server: its process, its port, and the folder with a client's credentials."""

    pid: int
    port: int
    folder: Path

    def channel(self) -> grpc.aio.Channel:
        """A connection of its own."""
        pair = [(self.folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
        credentials = grpc.ssl_channel_credentials(*pair)
        return grpc.aio.secure_channel(f"127.0.0.1:{self.port}", credentials, options=_CHANNEL_OPTIONS)


@contextmanager
def _serving() -> Iterator[_Peer]:
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.plain_peer", folder]
        with piped(command) as server:
            assert server.stdout is not None
            yield _Peer(server.pid, int(server.stdout.readline()), Path(folder))


async def _bytes_each(peer: _Peer, connections: int) -> float:
    before = 0
    async with AsyncExitStack() as opened:
        for number in range(_WARM + connections):
            if number == _WARM:
                before = memory_of(peer.pid).anonymous
            channel = await opened.enter_async_context(peer.channel())
            call: Any = channel.stream_stream(_STREAM)()
            await call.write(b"hello")
            await call.read()
        return (memory_of(peer.pid).anonymous - before) / connections


async def _cpu_of(peer: _Peer, callers: int, calls: int, message: bytes) -> float:
    numbers = iter(range(calls))

    async def call_on(unary: Any) -> None:
        for _ in numbers:
            await unary(message)

    async with AsyncExitStack() as opened:
        unaries: list[Any] = [
            (await opened.enter_async_context(peer.channel())).unary_unary(_UNARY) for _ in range(callers)
        ]
        await asyncio.gather(*(unary(message) for unary in unaries))
        before = cpu_s_of([peer.pid])
        await asyncio.gather(*(call_on(unary) for unary in unaries))
        return cpu_s_of([peer.pid]) - before


async def _stream(requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _unary(request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


async def _serve(folder: Path) -> None:
    authority = Authority.open(folder / "ca", now=time.time())
    pair = authority.server_key_pair(("127.0.0.1",), now=time.time())
    client = authority.issue_operator("plain", now=time.time())
    for name, content in (("ca", authority.certificate_pem), ("key", client.key_pem), ("cert", client.issued.pem)):
        (folder / f"{name}.pem").write_bytes(content)
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    credentials = grpc.ssl_server_credentials(
        [(pair.key_pem, pair.certificate_pem)], authority.certificate_pem, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
