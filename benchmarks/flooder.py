"""A participant that checks in again and again on several connections, as fast as it is let, until it is told to end.

``python -m benchmarks.flooder TOKEN STATE COUNTS``: what it was answered is written to COUNTS at the end, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import grpc
import grpc.aio

from atoll.client.identity import Identity, enrol
from atoll.wire.messages import PROTOCOL
from atoll.wire.status import detail_from_trailers
from atoll.wire.v1 import participation_pb2, participation_pb2_grpc

CONNECTIONS = 4
STREAMS = 128
"""At the same time, on each connection: what the server allows by default."""
WELCOME = "welcome"
_HELLO = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=PROTOCOL, examples=1))


async def flood(identity: Identity, answers: Counter[str]) -> None:
    """Check in until cancelled."""
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_connection(identity, answers))


async def _connection(identity: Identity, answers: Counter[str]) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.secure_channel(identity.server_address, identity.credentials(), options=options) as channel,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(STREAMS):
            group.create_task(_come_and_go(channel, answers))


async def _come_and_go(channel: grpc.aio.Channel, answers: Counter[str]) -> None:
    stub = participation_pb2_grpc.ParticipationServiceStub(channel)
    while True:
        call = stub.CheckIn()
        try:
            await call.write(_HELLO)
            await call.read()
            answers[WELCOME] += 1
        except asyncio.InvalidStateError:  # it ended while the greeting was written
            answers[(await call.code()).name] += 1
        except grpc.aio.AioRpcError as error:
            detail = detail_from_trailers(list(error.trailing_metadata() or ()))
            answers[detail.code if detail is not None else error.code().name] += 1
        finally:
            call.cancel()


async def main(token: str, state: Path, counts: Path) -> None:
    """Flood until SIGTERM."""
    answers: Counter[str] = Counter()
    identity = await asyncio.to_thread(enrol, token, state)
    running = asyncio.ensure_future(flood(identity, answers))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.to_thread(counts.write_text, json.dumps(answers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
