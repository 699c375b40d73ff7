"""Forks processes that run ``atoll`` from one that has imported its modules, which takes most of a start.

``python forker.py SOCKET KIND``, a descriptor and a key of ``LOADED``. A request is its length, with the descriptors
of standard input, output and error, of the pipe for the answer, and those to keep open; then JSON: ``argv``, ``env``,
``cwd`` and ``keep``, the numbers that the kept descriptors get. The answer is the process's id and, when it has ended,
its exit status as in ``subprocess.Popen``, its processor milliseconds and the KiB of its peak memory, each as
``NUMBER``. The forker ends when the other end of the socket closes.

A launcher of ranks is forked together with a process that forks its ranks, and a server of several ingest workers with
one that forks its workers: they are its children, as if it had started them (see ``Rank`` and ``Worker``). So are the
server and clients of a demonstration, and its silos, which are launchers of ranks in turn (see ``supervised``).
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import logging
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

LENGTH = struct.Struct("!I")
NUMBER = struct.Struct("!i")
MAX_DESCRIPTORS = 16
LOADED = {
    "server": (
        "alembic.command",
        "alembic.ddl.postgresql",
        "atoll.client.cli.client",
        "atoll.client._connection.endpoint",
        "atoll.client._session.session",
        "atoll.server.aggregation.kernel",
        "atoll.server.aggregator.daemon",
        "atoll.server.buckets.bucket",
        "atoll.server.cli.aggregator",
        "atoll.server.cli.run",
        "atoll.server.cli.server",
        "atoll.server.process.server",
        "cryptography.hazmat.backends.openssl.backend",
        "encodings.idna",
        "grpc._channel",
        "psycopg",
    ),
    "silo": (
        "atoll.client._connection.endpoint",
        "atoll.datacenter.cli.join",
        "atoll.datacenter.cli.train",
        "atoll.datacenter.elastic.launch",
        "atoll.datacenter.elastic.rank",
        "atoll.datacenter.elastic.recorder",
        "atoll.datacenter.elastic.watch",
        "atoll.datacenter.federation.memory_check",
        "atoll.datacenter.federation.session_thread",
        "atoll.datacenter.federation.silo",
        "atoll.datacenter.train.trainer",
        "atoll.wire.join_token",
        "cryptography.hazmat.backends.openssl.backend",
        "grpc._channel",
        "numpy.ma",
        "torch._dynamo",
        "torch.profiler._cupti_monitor",
    ),
}
"""Modules that take time to load, besides those that these load; by the kind of processes that are forked."""
NEWER = frozenset({"torch.profiler._cupti_monitor"})
"""Those of them that the oldest supported version of their package lacks."""
_SEVERAL_WORKERS = "--workers"
_WORKER = ("-m", "atoll.server.process.worker_process")
_JOINING = {"silo", "join"}
_DEMONSTRATION = "demo"
_GUARD_WORDS = 5
"""What ``atoll.processes.guarded`` puts before a command."""
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
MOUNT = "ATOLL_TESTS_MOUNT"
"""The environment variable with a shell command for the mounts that a fork alone sees."""
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
    """The wanted numbers of descriptors, and their numbers here."""


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


def ask(
    requests: socket.socket,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    standard: Sequence[int],
    keep: Sequence[int] = (),
) -> int:
    """Send a request; return the descriptor that the answers come from. ``standard`` and ``keep`` stay open here."""
    answer, answers = os.pipe()
    said = {"argv": list(argv), "env": dict(env), "cwd": cwd, "keep": list(keep)}
    message = json.dumps(said).encode()
    socket.send_fds(requests, [LENGTH.pack(len(message))], [*standard, answers, *keep])
    requests.sendall(message)
    os.close(answers)
    return answer


def answered(answer: int) -> int:
    """Wait for a number.

    Raises:
        AssertionError: if the process that forks has ended.
    """
    found = os.read(answer, NUMBER.size)
    assert found, "the process that forks others has ended: see its standard error"
    number: int = NUMBER.unpack(found)[0]
    return number


def guard(request: Request) -> None:
    """Start the process in a fork and report how it ended. Only the started process returns from this call."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        return
    for descriptor in (*request.standard, *request.kept.values()):
        os.close(descriptor)
    os.write(request.answer, NUMBER.pack(pid))
    _, status, used = os.wait4(pid, 0)
    spent_ms = int(1000 * (used.ru_utime + used.ru_stime))
    for number in (os.waitstatus_to_exitcode(status), spent_ms, used.ru_maxrss):
        os.write(request.answer, NUMBER.pack(number))
    os._exit(0)


def become(request: Request) -> None:
    """Set up the environment that a separately started process would have; it leads a session already."""
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
    sys.path[:0] = [one for one in request.env.get("PYTHONPATH", "").split(os.pathsep) if one not in {"", *sys.path}]
    sys.argv = list(request.argv)
    if mount := request.env.get(MOUNT):
        mount_alone(mount)


def mount_alone(command: str) -> None:
    """Mount what the command says in a new namespace, as ``unshare -m`` does, or ``unshare -U -r -m`` without root."""
    user, group, root = os.geteuid(), os.getegid(), os.geteuid() == 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS if root else _CLONE_NEWNS | _CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    if not root:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(text)
    subprocess.run(["/bin/sh", "-c", f"mount --make-rprivate / && {command}"], check=True)


def run(request: Request) -> None:
    """Run the command line: ``atoll …``, or ``python [-u]`` with ``FILE …``, ``-m MODULE …`` or ``-c CODE …``."""
    if request.argv[0] != sys.executable:
        from atoll.client.cli import main as atoll  # noqa: PLC0415

        atoll()
        return
    words = list(request.argv[1:])
    if words[0] == "-u":
        del words[0]
        sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    if words[0] == "-m":
        sys.path.insert(0, request.cwd)
        sys.argv = words[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = [words[0], *words[2:]]
        exec(words[1], {"__name__": "__main__"})  # noqa: S102  # as Python does
    else:
        sys.argv = words
        runpy.run_path(sys.argv[0], run_name="__main__")


def run_to_end(request: Request) -> None:
    """Run the command line and note how it ended, for ``Leaving``."""
    try:
        run(request)
    except SystemExit as ended:
        _LEAVING.code = 0 if ended.code is None else ended.code
        raise
    except BaseException:
        _LEAVING.code = None
        raise
    _LEAVING.code = 0


@dataclass
class Leaving:
    """Ends a fork after its threads and its exit functions, without the destruction of its modules.

    That would write to every object that it shares with the forker, so that the system copies 100 MB: four fifths of
    the processor time of a short command.

    Attributes:
        code: the exit status of a command that has ended; anything but a number leaves the end to Python.
    """

    code: str | int | None = None

    def leave(self) -> None:
        """The last exit function, because it is the first that the forker registers, but for logging's."""
        if isinstance(self.code, int):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


_LEAVING = Leaving()


def _unbuffered(descriptor: int) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # as Python does for -u


class Rank:
    """Like ``subprocess.Popen`` for a fork of the process that forks this launcher's ranks; a child of this process."""

    def __init__(
        self,
        requests: socket.socket,
        args: Sequence[str],
        env: Mapping[str, str],
        stdout: IO[str] | None,
        stderr: IO[str] | None,
        *,
        start_new_session: bool,
        pass_fds: Sequence[int] = (),
    ) -> None:
        assert start_new_session, "a forked process always leads a session"
        sys.stdout.flush()
        standard = (0, stdout.fileno() if stdout else 1, stderr.fileno() if stderr else 2)
        answer = ask(requests, args, env, str(Path.cwd()), standard, pass_fds)
        self.pid = answered(answer)
        os.close(answer)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: if it does not in time.
        """
        if self.poll() is None:
            process = os.pidfd_open(self.pid)
            ended = select.poll()
            ended.register(process, select.POLLIN)
            ended.poll(None if timeout is None else 1000 * timeout)
            os.close(process)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        return code


def supervised(
    requests: socket.socket,
    command: Sequence[str],
    *,
    stdin: int,
    stdout: IO[str],
    stderr: int,
    **how: Any,
) -> Rank:
    """Do what ``atoll.processes`` does to start a process that ends with its parent, in a fork, which does not."""
    assert (stdin, stderr) == (subprocess.DEVNULL, subprocess.STDOUT), "all output goes to one log"
    return Rank(requests, command[_GUARD_WORDS:], stdout=stdout, stderr=stdout, **how)


def completed(
    requests: socket.socket,
    command: Sequence[str],
    *,
    timeout: float,
    capture_output: bool,
    text: bool,
    check: bool,
) -> subprocess.CompletedProcess[str]:
    """Do what a demonstration's ``Operator`` does to run a command to its end, in a fork."""
    assert (capture_output, text, check) == (True, True, False)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = Rank(requests, command[_GUARD_WORDS:], os.environ, out, err, start_new_session=True).wait(timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


class Worker:
    """Like ``asyncio.subprocess.Process`` for an ingest worker, which is a fork and a child of this process."""

    def __init__(self, requests: socket.socket, args: Sequence[str]) -> None:
        theirs, self._stdin = os.pipe()  # stays open as long as this process lives, as the worker expects
        answer = ask(requests, args, os.environ, str(Path.cwd()), (theirs, 1, 2))
        os.close(theirs)
        self.pid = answered(answer)
        os.close(answer)
        self.returncode: int | None = None
        loop, process = asyncio.get_running_loop(), os.pidfd_open(self.pid)
        self._ended: asyncio.Future[int] = loop.create_future()
        loop.add_reader(process, self._end, loop, process)

    @classmethod
    async def start(cls, requests: socket.socket, *args: str, stdin: int) -> Worker:
        """Do what ``asyncio.create_subprocess_exec`` does for the pool of workers."""
        assert (args[1:3], stdin) == (_WORKER, asyncio.subprocess.PIPE), f"no ingest worker: {args}"
        return cls(requests, args)

    def _end(self, loop: asyncio.AbstractEventLoop, process: int) -> None:
        loop.remove_reader(process)
        os.close(process)
        os.close(self._stdin)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set_result(self.returncode)

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask it to end, if it still runs."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it as ``kill -9`` does, if it still runs."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)


def fork_children(requests: socket.socket, *, lead: bool) -> Request | None:
    """Fork children for a process until it has ended. Only a started child returns a request from this call.

    The parent of each ends at once, so that it becomes a child of the process that asked for it. ``lead``: whether each
    leads a session.
    """
    while (request := receive(requests)) is not None:
        read, written = os.pipe()
        adopted, orphaning = os.pipe()
        if (between := os.fork()) == 0:
            if os.fork() == 0:
                if lead:
                    os.setsid()  # before the launcher knows of it: the launcher may signal its group at once
                os.write(written, NUMBER.pack(os.getpid()))
                os.close(orphaning)
                os.read(adopted, 1)  # a rank ends when its parent changes
                requests.detach()  # as in ``main``
                become(request)
                return request
            os._exit(0)
        os.close(written)
        os.waitpid(between, 0)
        os.close(orphaning)
        os.write(request.answer, os.read(read, NUMBER.size))
        for descriptor in (*request.standard, request.answer, read, adopted):
            os.close(descriptor)
    return None


def launch(request: Request, kind: str) -> None:
    """Run a launcher or a server, whose ranks or workers are forks of this process as it is now.

    It first imports the modules that ``MORE_LOADED`` in its environment names.
    """
    for name in request.env.get("MORE_LOADED", "").split():
        importlib.import_module(name)
    gc.freeze()
    ours, its = socket.socketpair()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    demonstration = _DEMONSTRATION in request.argv
    if os.fork() == 0:
        ours.close()
        if (child := fork_children(its, lead=demonstration or kind == "silo")) is None:
            _LEAVING.code = 0
        elif _JOINING.issubset(child.argv):
            launch(child, kind)
        else:
            run_to_end(child)
        return
    its.close()
    if kind == "silo":
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler  # noqa: PLC0415

        vars(subprocess_handler)["Popen"] = partial(Rank, ours)  # what starts a rank
    if demonstration:
        from atoll.processes import supervise  # noqa: PLC0415

        starts = {**vars(subprocess), "Popen": partial(supervised, ours)}
        vars(supervise)["subprocess"] = SimpleNamespace(**starts)
        if kind == "silo":
            from atoll.datacenter.demo import operator  # noqa: PLC0415

            runs = {**vars(subprocess), "run": partial(completed, ours)}
            vars(operator)["subprocess"] = SimpleNamespace(**runs)  # what follows a run starts as users do
    elif kind == "server":
        vars(asyncio)["create_subprocess_exec"] = partial(Worker.start, ours)  # what starts a worker
    run_to_end(request)


def main() -> None:
    """Fork until there are no more requests; then, and in each fork at its end, return."""
    atexit.register(_LEAVING.leave)
    kind = sys.argv[2]
    for name in LOADED[kind]:
        if name not in NEWER or find_spec(name) is not None:
            importlib.import_module(name)
    if kind == "server":
        from atoll.server.aggregation import warm  # noqa: PLC0415

        warm()
    gc.freeze()  # a fork's collector would go through what is loaded, and so copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are not waited for
    requests = socket.socket(fileno=int(sys.argv[1]))
    while (request := receive(requests)) is not None:
        if os.fork() == 0:
            guard(request)
            os.setsid()
            requests.detach()  # ``become`` closes it; the object would at its end close what then has its number
            become(request)
            if kind == "silo" or {_SEVERAL_WORKERS, _DEMONSTRATION}.intersection(request.argv):
                launch(request, kind)
            else:
                run_to_end(request)
            return
        for descriptor in (*request.standard, request.answer, *request.kept.values()):
            os.close(descriptor)


if __name__ == "__main__":
    main()
