"""Starts ``atoll`` as forks of one process that has imported it, so a server starts in a tenth of the time."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.system.forker import LENGTH, NUMBER

_FORKER = Path(__file__).with_name("forker.py")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A pool of threads would not survive a fork."""


class Forked:
    """Like ``subprocess.Popen`` for a process with another parent, the forker, which reports how it ended."""

    def __init__(
        self, arguments: Sequence[str], stderr: int, env: Mapping[str, str], cwd: Path, keep_open: Sequence[int]
    ) -> None:
        theirs, stdin = os.pipe()
        stdout, writes = os.pipe()
        self._answer, answers = os.pipe()
        self._code: int | None = None
        handed = (theirs, writes, answers)
        said = {"argv": list(arguments), "env": dict(env), "cwd": str(cwd), "keep": list(keep_open)}
        message = json.dumps(said).encode()
        requests = _requests()
        socket.send_fds(requests, [LENGTH.pack(len(message))], [theirs, writes, stderr, answers, *keep_open])
        requests.sendall(message)
        for descriptor in handed:
            os.close(descriptor)
        self.stdin: IO[str] | None = os.fdopen(stdin, "w")
        self.stdout: IO[str] | None = os.fdopen(stdout)
        self.pid = self._number()

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
            self._code = self._number()
            os.close(self._answer)
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _number(self) -> int:
        answer = os.read(self._answer, NUMBER.size)
        assert answer, "the process that starts others has ended: its error is in this one's standard error"
        number: int = NUMBER.unpack(answer)[0]
        return number


@cache
def _requests() -> socket.socket:
    """Connect to the forker, which starts with the first request and ends with this process."""
    ours, its = socket.socketpair()
    with its:
        forker = subprocess.Popen(
            [sys.executable, _FORKER, str(its.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | _ONE_THREAD,
            pass_fds=(its.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        forker.wait()

    atexit.register(end)
    return ours
