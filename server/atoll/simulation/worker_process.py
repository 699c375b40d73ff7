"""A worker process: a runner that serves the simulation over a socket.

It is forked, so any factory works, including closures and functions of a notebook, and the factory's data is shared
until it is written to. It ends with the simulation, whose socket closes. If the simulation is killed, the system ends
the worker at once, even in the middle of a task, so that a later call does not find it still running.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from atoll.processes.parents import end_with_parent
from atoll.server.errors import ServerError
from atoll.server.ingest.partial_file import write_partial
from atoll.simulation.frames import LENGTH, Message, framed, opening_from, outcome_to, request_from, sum_from
from atoll.simulation.gpus import GpuShare
from atoll.simulation.task_runner import TaskRunner
from atoll.simulation.tasks import RoundOverError
from atoll.simulation.threads import one_thread

TELL_EVERY_S = 0.02
"""A worker sends its outcomes at least this often, unless a single task takes longer."""


def forked(runner: TaskRunner, others: list[socket.socket]) -> tuple[int, socket.socket]:
    """Start a worker; return its process id and the socket to it. The worker closes ``others``."""
    mine, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads hold nothing that the worker uses
        pid = os.fork()
    if pid:
        theirs.close()
        return pid, mine
    status = 1
    try:
        for one in (mine, *others):
            one.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the simulation gets it, and closes the socket
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent(parent)
        gc.freeze()  # the collector skips the parent's objects, so their pages stay shared
        with one_thread():
            _serve(runner, theirs)
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(runner: TaskRunner, connection: socket.socket) -> None:
    work = _Answers(runner)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the simulation does not wait for the rest
        while (message := _received(connection)) is not None:
            if message["do"] == "work":
                for done in _done(runner, message):
                    connection.sendall(framed({"done": done}))
            elif (answer := work.to(message)) is not None:
                connection.sendall(framed(answer))
    runner.close()


def _done(runner: TaskRunner, message: Message) -> Iterator[list[list[Any] | Message | None]]:
    """Run the tasks of a message; yield their outcomes, several at a time.

    The outcome of the last task but one is sent at once, so that more tasks arrive while the last one is done.
    """
    key, tasks = tuple(message["key"]), message["tasks"]
    sent_at, found = time.monotonic(), list[list[Any] | Message | None]()
    for left, task in zip(reversed(range(len(tasks))), tasks, strict=True):
        found.append(_outcome(runner, key, task))
        if left <= 1 or time.monotonic() - sent_at >= TELL_EVERY_S:
            yield found
            sent_at, found = time.monotonic(), []


def _outcome(runner: TaskRunner, key: tuple[str, int, int], task: list[Any]) -> list[Any] | Message | None:
    """The outcome of a task; None if its round is over."""
    try:
        return outcome_to(runner.work(key, request_from(task)))
    except RoundOverError:
        return None
    except Exception as error:  # noqa: BLE001 - the simulation raises it
        return _failure(error)


def _failure(error: Exception) -> Message:
    said = str(error.detail) if isinstance(error, ServerError) else str(error)
    return {"error": said or type(error).__name__, "traceback": traceback.format_exc()}


class _Answers:
    """A runner's answer to each message except tasks; None if no answer is awaited."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._to: dict[str, Callable[[Message], Any]] = {
            "gpu": lambda said: GpuShare(said["devices"], said["share"]).take(),
            "facts": self._facts,
            "partial": self._partial,
            "open": lambda said: runner.open(opening_from(said)),
            "drop": lambda said: runner.drop(said["run"], tuple(said["through"])),
            "forget": self._forget,
        }

    def to(self, message: Message) -> Message | None:
        """The answer to a message."""
        number = message.get("number")
        try:
            found = self._to[message["do"]](message)
        except Exception as error:  # noqa: BLE001 - the simulation raises it
            return {"number": number, **_failure(error)}
        return None if number is None else {"number": number, "found": found}

    def _facts(self, message: Message) -> list[list[Any]]:
        found = [self._runner.facts(name, seed) for name, seed in message["of"]]
        return [[one.examples, one.can_evaluate] for one in found]

    def _partial(self, message: Message) -> None:
        write_partial(Path(message["path"]), self._runner.partial(*sum_from(message)))

    def _forget(self, message: Message) -> None:
        keep = {(number, attempt, name) for number, attempt, name in message["keep"]}
        self._runner.forget(message["run"], tuple(message["through"]), keep)


def _received(connection: socket.socket) -> Message | None:
    """The next message; None once the simulation has closed the socket."""
    head = _exactly(connection, LENGTH.size)
    if head is None:
        return None
    text = _exactly(connection, LENGTH.unpack(head)[0])
    return None if text is None else json.loads(text)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(1 << 20, count - len(parts)))
        if not part:
            return None
        parts += part
    return bytes(parts)
