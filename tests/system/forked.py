"""Starts ``atoll`` as forks of one process that has imported it, so a server starts in a tenth of the time.

Processes of a silo are forks of another process, which has imported torch, since its imports take ten times as long.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.patience import WAIT_S
from tests.system.forker import answered, ask

_FORKER = Path(__file__).with_name("forker.py")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A pool of threads would not survive a fork."""
_PRELOAD = "LD_PRELOAD"


class Fork:
    """Like ``subprocess.Popen`` for a process with another parent, the forker, which reports how it ended.

    Args:
        kind: of the forker, a key of its ``LOADED``.
        arguments: the command line.
        standard: descriptors of its standard input, output and error, which stay open here.
        env: the whole environment.
        cwd: its working directory.
        keep_open: descriptors that it inherits.

    Attributes:
        processor_s: what it has spent, with the children that it waited for; 0 before its end.
        peak_kib: of its resident memory, with what it shares; 0 before its end.
    """

    def __init__(
        self,
        kind: str,
        arguments: Sequence[str],
        standard: tuple[int, int, int],
        env: Mapping[str, str],
        cwd: Path,
        keep_open: Sequence[int] = (),
    ) -> None:
        self._code: int | None = None
        self.processor_s, self.peak_kib = 0.0, 0
        self._answer = ask(_requests(kind, env.get(_PRELOAD, "")), arguments, env, str(cwd), standard, keep_open)
        self.pid = answered(self._answer)

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: if it does not in time.
        """
        if self._code is None:
            ended = select.poll()
            ended.register(self._answer, select.POLLIN)
            if timeout is not None and not ended.poll(1000 * timeout):
                raise subprocess.TimeoutExpired("atoll", timeout)
            self._code = answered(self._answer)
            self.processor_s = answered(self._answer) / 1000
            self.peak_kib = answered(self._answer)
            os.close(self._answer)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as ``kill -9`` does, if it still runs."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, if it still runs."""
        self.send_signal(signal.SIGTERM)


class Forked(Fork):
    """A fork whose standard input and output are pipes to this process.

    Args:
        kind: see ``Fork``.
        arguments: the command line.
        stderr: a descriptor, or ``subprocess.STDOUT``.
        env: the whole environment.
        cwd: its working directory.
        keep_open: descriptors that it inherits.
    """

    def __init__(
        self,
        kind: str,
        arguments: Sequence[str],
        stderr: int,
        env: Mapping[str, str],
        cwd: Path,
        keep_open: Sequence[int] = (),
    ) -> None:
        theirs, stdin = os.pipe()
        stdout, writes = os.pipe()
        errors = writes if stderr == subprocess.STDOUT else stderr
        super().__init__(kind, arguments, (theirs, writes, errors), env, cwd, keep_open)
        os.close(theirs)
        os.close(writes)
        self.stdin: IO[str] | None = os.fdopen(stdin, "w")
        self.stdout: IO[str] | None = os.fdopen(stdout)

    def close(self) -> None:
        """Close the pipes of its standard input and output."""
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def run_forked(
    kind: str, arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a fork to its end, like ``subprocess.run`` with captured text.

    Args:
        kind: of the forker, a key of its ``LOADED``.
        arguments: the command line.
        cwd: its working directory.
        env: additional environment variables.

    Raises:
        subprocess.TimeoutExpired: if it does not end in time; it is killed then.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, Path(os.devnull).open() as nothing:
        standard = (nothing.fileno(), out.fileno(), err.fileno())
        fork = Fork(kind, arguments, standard, os.environ | (env or {}), cwd)
        try:
            code = fork.wait(WAIT_S)
        finally:
            fork.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


@cache
def _requests(kind: str, preload: str) -> socket.socket:
    """Connect to the forker of a kind, which starts with the first request and ends with this process.

    A library that is loaded before the C library takes a forker of its own.
    """
    ours, its = socket.socketpair()
    with its:
        forker = subprocess.Popen(
            [sys.executable, _FORKER, str(its.fileno()), kind],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD | ({_PRELOAD: preload} if preload else {}),
            pass_fds=(its.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        forker.wait()

    atexit.register(end)
    return ours
