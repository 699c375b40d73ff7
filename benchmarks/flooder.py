"""A participant that checks in repeatedly on several connections, as fast as the server allows, until it is stopped.

``python -m benchmarks.flooder TOKEN STATE COUNTS FD``: it writes a line to the descriptor FD at its first refusal, and
at the end the counts of answers to COUNTS, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import grpc
import grpc.aio

from atoll.client._connection.enrolment import enrol
from atoll.client._connection.identity import Identity
from atoll.processes.cancellation import keep_cancellation
from atoll.wire.messages import PROTOCOL
from atoll.wire.status import detail_from_trailers
from atoll.wire.v1 import participation_pb2, participation_pb2_grpc

CONNECTIONS = 4
STREAMS = 128
"""Concurrent check-ins on each connection: the server's default limit."""
WELCOME = "welcome"
REFUSED = "checkin.rate"
_HELLO = participation_pb2.CheckInRequest(hello=participation_pb2.Hello(protocol=PROTOCOL, examples=1))


class Answers(Counter[str]):
    """Counts of each answer; ``refused`` is set once the server refuses for too many check-ins."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = asyncio.Event()

    def note(self, answer: str) -> None:
        """Count one."""
        self[answer] += 1
        if answer == REFUSED:
            self.refused.set()


async def flood(identity: Identity, answers: Answers) -> None:
    """Check in until cancelled."""
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_connection(identity, answers))


async def _connection(identity: Identity, answers: Answers) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.secure_channel(identity.server_address, identity.credentials(), options=options) as channel,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(STREAMS):
            group.create_task(_come_and_go(channel, answers))


async def _come_and_go(channel: grpc.aio.Channel, answers: Answers) -> None:
    stub = participation_pb2_grpc.ParticipationServiceStub(channel)
    while True:
        keep_cancellation()
        call = stub.CheckIn()
        try:
            await call.write(_HELLO)
            await call.read()
            answers.note(WELCOME)
        except asyncio.InvalidStateError:  # it ended while the greeting was written
            answers.note((await call.code()).name)
        except grpc.aio.AioRpcError as error:
            detail = detail_from_trailers(list(error.trailing_metadata() or ()))
            answers.note(detail.code if detail is not None else error.code().name)
        finally:
            call.cancel()


async def main(token: str, state: Path, counts: Path, ready_fd: int) -> None:
    """Flood until SIGTERM."""
    answers = Answers()
    identity = await asyncio.to_thread(enrol, token, state)
    running = asyncio.ensure_future(flood(identity, answers))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    announcing = asyncio.create_task(_announce(answers, ready_fd))
    await asyncio.gather(running, return_exceptions=True)
    announcing.cancel()
    await asyncio.to_thread(counts.write_text, json.dumps(answers))


async def _announce(answers: Answers, ready_fd: int) -> None:
    await answers.refused.wait()
    with os.fdopen(ready_fd, "w") as pipe:
        pipe.write("refused\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
