"""A worker process: a runner that answers to the simulation over a socket.

It is forked, so any factory works, closures and functions of a notebook too, and data that the factory refers to is
shared until it is written to. It ends when the simulation does: the socket closes then.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll.server.errors import ServerError
from atoll.server.ingest.partial_file import write_partial
from atoll.simulation.frames import LENGTH, Message, framed, opening_from, outcome_to, request_from, sum_from
from atoll.simulation.task_runner import TaskRunner
from atoll.simulation.threads import one_thread


def forked(runner: TaskRunner, others: list[socket.socket]) -> tuple[int, socket.socket]:
    """Start a worker; its process id, and the socket that leads to it. ``others`` are not the worker's to hold."""
    mine, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the simulation hears it, and closes the socket
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
    while (message := _received(connection)) is not None:
        answer = work.to(message)
        if answer is not None:
            connection.sendall(framed(answer))
    runner.close()


class _Answers:
    """What a runner answers to each message; None where no answer is awaited."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._to: dict[str, Callable[[Message], Any]] = {
            "facts": self._facts,
            "work": lambda said: outcome_to(runner.work(tuple(said["key"]), request_from(said["request"]))),
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
            said = str(error.detail) if isinstance(error, ServerError) else str(error)
            return {"number": number, "error": said or type(error).__name__, "traceback": traceback.format_exc()}
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
