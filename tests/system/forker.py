"""Forks processes that run ``atoll`` from one that has imported its modules, which is most of the time of a start.

``python forker.py SOCKET``, a descriptor. A request is its length, with the descriptors of standard input, output and
error, of the pipe for the answer, and those to keep open; then JSON: ``argv``, ``env``, ``cwd`` and ``keep``, the
numbers that the kept descriptors get. The answer is the process's id and, when it has ended, its exit status as
in ``subprocess.Popen``, both as ``NUMBER``. The forker ends when the other end of the socket closes.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LENGTH = struct.Struct("!I")
NUMBER = struct.Struct("!i")
MAX_DESCRIPTORS = 16
LOADED = (
    "alembic.command",
    "alembic.ddl.postgresql",
    "atoll.client.cli.client",
    "atoll.client._session.session",
    "atoll.server.aggregation.kernel",
    "atoll.server.cli.server",
)
"""Modules that take time to load, besides those that these load."""
_HIGH = 100
"""Above the numbers of any descriptor that a process is started with."""


@dataclass(frozen=True)
class Request:
    """A process to start."""

    argv: Sequence[str]
    env: dict[str, str]
    cwd: str
    standard: Sequence[int]
    answer: int
    kept: dict[int, int]
    """Numbers that descriptors shall have, and those that they have here."""


def receive(requests: socket.socket) -> Request | None:
    """The next request; None when there are no more."""
    head, descriptors, _, _ = socket.recv_fds(requests, LENGTH.size, MAX_DESCRIPTORS)
    if not head:
        return None
    (length,) = LENGTH.unpack(head)
    said: dict[str, Any] = json.loads(_exactly(requests, length))
    standard, (answer, *kept) = descriptors[:3], descriptors[3:]
    return Request(said["argv"], said["env"], said["cwd"], standard, answer, dict(zip(said["keep"], kept, strict=True)))


def _exactly(requests: socket.socket, length: int) -> bytes:
    with requests.makefile("rb", buffering=0) as stream:
        read = bytearray()
        while len(read) < length:
            read += stream.read(length - len(read)) or b""
        return bytes(read)


def guard(request: Request) -> None:
    """Start the process in a fork and report how it ended. Only the started process returns from this call."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        return
    for descriptor in (*request.standard, *request.kept.values()):
        os.close(descriptor)
    os.write(request.answer, NUMBER.pack(pid))
    os.write(request.answer, NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def become(request: Request) -> None:
    """Take over what a process that was started by itself would find."""
    os.setsid()
    os.chdir(request.cwd)
    wanted = dict(enumerate(request.standard)) | request.kept
    moved = {number: fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for number, descriptor in wanted.items()}
    last = max(moved.values())
    for number, descriptor in moved.items():
        os.dup2(descriptor, number)
    for descriptor in set(range(last + 1)) - set(wanted):
        with contextlib.suppress(OSError):  # there is none of this number
            os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.env)
    tempfile.tempdir = None  # found anew, from this environment
    sys.argv = list(request.argv)


def run(request: Request) -> None:
    """Return the parsed command line."""
    if request.argv[0] != sys.executable:
        from atoll.client.cli import main as atoll  # noqa: PLC0415

        atoll()
        return
    sys.argv = list(request.argv[1:])
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Fork until there are no more requests; then, and in each fork at its end, return."""
    for name in LOADED:
        importlib.import_module(name)
    from atoll.server.aggregation import warm  # noqa: PLC0415

    warm()
    gc.freeze()  # a fork's collector would go through what is loaded, and so copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are not waited for
    requests = socket.socket(fileno=int(sys.argv[1]))
    while (request := receive(requests)) is not None:
        if os.fork() == 0:
            guard(request)
            requests.detach()  # ``become`` closes it; the object would at its end close what then has its number
            become(request)
            run(request)
            return
        for descriptor in (*request.standard, request.answer, *request.kept.values()):
            os.close(descriptor)


if __name__ == "__main__":
    main()
