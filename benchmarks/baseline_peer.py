"""One process of the plain baselines, started by ``baselines``: a gRPC server, or a client of it.

    python -m benchmarks.baseline_peer serve THREADS BYTES [CERTIFICATE KEY]
    python -m benchmarks.baseline_peer client ADDRESS BYTES [CA]

The client says ``ready``, and then does one transfer for each line (``down`` or ``up``) on its standard input,
answering ``done``. Messages are raw bytes, as large as a chunk of the platform. They differ from one another like the
chunks of a model, so they come from memory, not from a processor's cache. Nothing is written or checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from atoll.wire.digest import DEFAULT_CHUNK_BYTES

MESSAGE_BYTES = DEFAULT_CHUNK_BYTES
_DISTINCT = 64
_OPTIONS = [("grpc.max_receive_message_length", 8 << 20), ("grpc.max_send_message_length", 8 << 20)]
_CONNECT_S = 60


def serve(threads: int, size: int, certificate: str = "", key: str = "") -> None:
    """Serve ``/T/Down`` (streams the requested bytes) and ``/T/Up`` (counts received bytes) until killed.

    Messages for ``size`` bytes exist before the first request.
    """
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Down": grpc.unary_stream_rpc_method_handler(lambda request, _: _messages(int(request))),
        "Up": grpc.stream_unary_rpc_method_handler(lambda requests, _: str(sum(map(len, requests))).encode()),
    }
    _made(_distinct(size))
    server = grpc.server(ThreadPoolExecutor(threads), options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("T", handlers),))
    if certificate:
        pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


def client(address: str, size: int, ca: str = "") -> None:
    """Run the transfers that standard input asks for."""
    _made(_distinct(size))
    channel = _channel(address, ca)
    grpc.channel_ready_future(channel).result(_CONNECT_S)
    down: Any = channel.unary_stream("/T/Down")
    up: Any = channel.stream_unary("/T/Up")
    print("ready", flush=True)
    for line in sys.stdin:
        downwards = line.strip() == "down"
        moved = sum(map(len, down(str(size).encode()))) if downwards else int(up(_messages(size)))
        if moved != size:
            raise RuntimeError(f"{moved} of {size} bytes passed")
        print("done", flush=True)


def _channel(address: str, ca: str) -> grpc.Channel:
    if not ca:
        return grpc.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def _messages(size: int) -> Iterator[bytes]:
    made = _made(_distinct(size))
    for number in range(size // MESSAGE_BYTES):
        yield made[number % len(made)]
    if size % MESSAGE_BYTES:
        yield made[0][: size % MESSAGE_BYTES]


def _distinct(size: int) -> int:
    """How many different messages the transfer of this many bytes takes."""
    return min(_DISTINCT, -(-size // MESSAGE_BYTES))


@cache
def _made(count: int) -> list[bytes]:
    return [os.urandom(MESSAGE_BYTES) for _ in range(count)]


def main() -> None:
    """Run one peer."""
    role, *arguments = sys.argv[1:]
    if role == "serve":
        serve(int(arguments[0]), int(arguments[1]), *arguments[2:])
    else:
        client(arguments[0], int(arguments[1]), *arguments[2:])


if __name__ == "__main__":
    main()
