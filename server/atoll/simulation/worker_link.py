"""The simulation's end of the socket to one worker process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from atoll.simulation.errors import SetupError, WorkerError
from atoll.simulation.frames import LENGTH, Message, framed, outcome_from, request_to
from atoll.simulation.task_queue import QueuedTask
from atoll.simulation.tasks import Outcome, RoundOverError

OnDone = Callable[[Sequence[Outcome]], None]
"""Called with the tasks that a worker has finished."""


class WorkerLink(asyncio.Protocol):
    """Sends tasks and requests to a worker, and receives its answers.

    Args:
        name: of the worker.
        pid: its process.
        connection: socket to it.
        on_done: called with the tasks that it has finished.

    Attributes:
        tasks: tasks queued at it, in its order.
        participants: participants that it has created.
    """

    def __init__(self, name: str, pid: int, connection: socket.socket, on_done: OnDone) -> None:
        self.name = name
        self.pid = pid
        self.tasks: deque[QueuedTask] = deque()
        self.participants: set[str] = set()
        self._connection = connection
        self._on_done = on_done
        self._awaited: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._lost: WorkerError | None = None
        self._closing = False
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

    async def open(self) -> None:
        """Start reading the worker's answers."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, sock=self._connection)

    def send(self, do: str, message: Message) -> None:
        """Send a message that needs no answer."""
        if self._transport is not None:
            self._transport.write(framed({"do": do, **message}))

    def ask(self, do: str, message: Message) -> asyncio.Future[Any]:
        """Send a request; the future gets the answer, or ``WorkerError`` if the worker has ended."""
        self._number += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        self._awaited[self._number] = future
        self.send(do, {"number": self._number, **message})
        return future

    def give(self, tasks: Sequence[QueuedTask]) -> None:
        """Make the worker run these tasks, in this order, after those that it has."""
        self.tasks.extend(tasks)
        self.participants.update(one.request.participant for one in tasks)
        if self._lost is not None:
            self._give_up(self._lost)
            return
        for key, of_round in groupby(tasks, lambda one: one.key):
            self.send("work", {"key": key, "tasks": [request_to(one.request) for one in of_round]})

    def close(self) -> None:
        """End the worker, which finishes its current task and closes its participants."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()
        self._connection.close()

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._received += data
        place, outcomes = 0, list[Outcome]()
        while len(self._received) >= place + LENGTH.size:
            (length,) = LENGTH.unpack_from(self._received, place)
            start = place + LENGTH.size
            if len(self._received) < start + length:
                break
            place = start + length
            message = json.loads(self._received[start:place])
            if "done" in message:
                outcomes += self._finished(message["done"])
            else:
                self._answered(message)
        del self._received[:place]
        if outcomes:
            self._on_done(outcomes)

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``: the worker has ended."""
        del exc
        if self._closing:
            return
        self._lost = WorkerError(f"{self.name} {_how_it_ended(self.pid)}")
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(self._lost)
        self._give_up(self._lost)

    def _give_up(self, why: WorkerError) -> None:
        while self.tasks:
            self.tasks.popleft().give_up(why)

    def _finished(self, done: Sequence[Any]) -> Iterator[Outcome]:
        for one in done:
            task = self.tasks.popleft()
            if one is None:
                task.give_up(RoundOverError("its round is over"))
                continue
            if isinstance(one, dict):
                task.give_up(_error_of(one))
                continue
            outcome = outcome_from(one)
            task.finish(self.name, outcome)
            yield outcome

    def _answered(self, message: Message) -> None:
        future = self._awaited.pop(message["number"], None)
        if future is None or future.done():
            return
        if "error" in message:
            future.set_exception(_error_of(message))
        else:
            future.set_result(message["found"])


def _error_of(message: Message) -> SetupError:
    return SetupError(f"{message['error']}\n{message['traceback']}")


def _how_it_ended(pid: int) -> str:
    """Describe how a worker whose socket is closed has ended, once it has."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return "has ended"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL); the machine may have run out of memory: lower workers, or keep"
    return f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"
