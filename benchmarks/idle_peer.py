"""Idle plain gRPC connections: the memory of one with mutual TLS and an open stream in a server that does nothing else.

python -m benchmarks.idle_peer FOLDER     prints its port, serves until standard input ends
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from atoll.server.identity import Authority
from benchmarks.sampling import memory_of

_METHOD = "/benchmarks.Idle/Stream"
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
_WARM = 50


def idle_bytes(connections: int) -> float:
    """Bytes of anonymous memory for each connection, beyond the first few."""
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.idle_peer", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            try:
                return asyncio.run(_measure(server.pid, server.stdout.readline().strip(), Path(folder), connections))
            finally:
                server.stdin.close()


async def _measure(pid: int, port: str, folder: Path, connections: int) -> float:
    pair = [(folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
    credentials = grpc.ssl_channel_credentials(*pair)
    opened: list[grpc.aio.Channel] = []
    calls: list[Any] = []
    before = 0
    for number in range(_WARM + connections):
        if number == _WARM:
            before = memory_of(pid).anonymous
        channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=_CHANNEL_OPTIONS)
        call: Any = channel.stream_stream(_METHOD)()
        await call.write(b"hello")
        await call.read()
        opened.append(channel)
        calls.append(call)
    after = memory_of(pid).anonymous
    for channel in opened:
        await channel.close()
    return (after - before) / connections


async def _stream(requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _serve(folder: Path) -> None:
    authority = Authority.open(folder / "ca", now=time.time())
    pair = authority.server_key_pair(("127.0.0.1",), now=time.time())
    client = authority.issue_operator("idle", now=time.time())
    for name, content in (("ca", authority.certificate_pem), ("key", client.key_pem), ("cert", client.issued.pem)):
        (folder / f"{name}.pem").write_bytes(content)
    server = grpc.aio.server()
    service, method = _METHOD.strip("/").split("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(_stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
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
