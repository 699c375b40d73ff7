"""Participants that only hold a stream, or only check in with unary calls, so that many fit one process.

python -m benchmarks.light_crowd FOLDER TOKENS FD stream
    writes "ready" once all streams are open; then a line for each invitation, with its epoch second
python -m benchmarks.light_crowd FOLDER TOKENS FD unary CALLS
    writes "ready" once all are enrolled; waits for a line on standard input, checks in CALLS times over a connection
    for each participant; writes "done"
python -m benchmarks.light_crowd FOLDER TOKENS FD phones CALLS
    the same with a new connection for each check-in
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from atoll.client._connection.endpoint import Endpoint
from atoll.client._connection.enrolment import enrol
from atoll.client._connection.identity import Identity
from atoll.wire.encoding import Encoding
from atoll.wire.messages import PROTOCOL
from atoll.wire.pacing import PING_S, ping_interval_s
from atoll.wire.v1 import participation_pb2, participation_pb2_grpc, tensors_pb2
from benchmarks.crowd import raise_limit

if TYPE_CHECKING:
    Stub = participation_pb2_grpc.ParticipationServiceAsyncStub

AT_ONCE = 8
"""Participants that enrol or connect at the same time."""
CALLS_S = 60.0
_HELLO = participation_pb2.Hello(
    protocol=PROTOCOL, examples=1, encodings=[tensors_pb2.Encoding.ValueType(item) for item in Encoding]
)
_UNARY = participation_pb2.CheckInOnceRequest(hello=_HELLO)


class LightCrowd:
    """The participants of this process; ``say`` writes a line to the process that started it."""

    def __init__(self, folder: Path, ready_fd: int) -> None:
        self._folder = folder
        self._ready_fd = ready_fd
        self._places = asyncio.Semaphore(AT_ONCE)

    def say(self, line: str) -> None:
        """Write a line."""
        os.write(self._ready_fd, f"{line}\n".encode())

    async def enrolled(self, tokens: Sequence[str]) -> list[Identity]:
        """An identity for each token."""
        return await asyncio.gather(*(self._enrol(number, token) for number, token in enumerate(tokens)))

    async def hold(self, identities: Sequence[Identity]) -> None:
        """Hold a stream for each identity until cancelled, with the server's interval of pings."""
        async with _channel(identities[0]) as channel:
            ping_s = ping_interval_s((await _checked_in(channel))[1].ping_s)
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for identity in identities:
                channel = await stack.enter_async_context(_channel(identity, ping_s))
                call, _ = await _checked_in(channel)
                group.create_task(self._listen(call))
            self.say("ready")

    async def _listen(self, call: Any) -> None:
        while isinstance(message := await call.read(), participation_pb2.CheckInResponse):
            if message.HasField("participate"):
                self.say(repr(time.time()))

    async def check_in(self, identities: Sequence[Identity], calls: int, *, anew: bool) -> None:
        """Check in this many times, all identities concurrently."""
        self.say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        numbers = iter(range(calls))
        await asyncio.gather(*(self._check_in(identity, numbers, anew=anew) for identity in identities))
        self.say("done")

    async def _check_in(self, identity: Identity, numbers: Iterator[int], *, anew: bool) -> None:
        async with contextlib.AsyncExitStack() as kept:
            stub = None if anew else _stub(await kept.enter_async_context(_channel(identity)))
            for _ in numbers:
                if stub is not None:
                    await stub.CheckInOnce(_UNARY, timeout=CALLS_S)
                    continue
                async with _channel(identity) as channel:
                    await _stub(channel).CheckInOnce(_UNARY, timeout=CALLS_S)

    async def _enrol(self, number: int, token: str) -> Identity:
        async with self._places:
            return await asyncio.to_thread(enrol, token, self._folder / str(number))


def _channel(identity: Identity, ping_s: float = PING_S) -> grpc.aio.Channel:
    return Endpoint(identity.server_address, identity, ping_s=ping_s).open_async()


async def _checked_in(channel: grpc.aio.Channel) -> tuple[Any, participation_pb2.Welcome]:
    """An open check-in stream, and its welcome."""
    call: Any = _stub(channel).CheckIn()
    await call.write(participation_pb2.CheckInRequest(hello=_HELLO))
    return call, (await call.read()).welcome


def _stub(channel: grpc.aio.Channel) -> Stub:
    return participation_pb2_grpc.ParticipationServiceStub(channel)


async def _run(folder: Path, tokens: Sequence[str], ready_fd: int, way: str, calls: int) -> None:
    crowd = LightCrowd(folder, ready_fd)
    identities = await crowd.enrolled(tokens)
    if way == "stream":
        await crowd.hold(identities)
    else:
        await crowd.check_in(identities, calls, anew=way == "phones")


async def _until_terminated(running: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(running)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> None:
    """Take part until SIGTERM."""
    folder, listed, ready_fd, way, *calls = sys.argv[1:]
    tokens = Path(listed).read_text().split()
    raise_limit(len(tokens))
    running = _run(Path(folder), tokens, int(ready_fd), way, int(calls[0]) if calls else 0)
    asyncio.run(_until_terminated(running))


if __name__ == "__main__":
    main()
