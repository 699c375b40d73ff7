"""Child processes of the system tests: each in its own process group, its output kept, always ended afterwards.

Nothing here polls: a wait is for a line that a thread has read, or for the end of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.patience import WAIT_S
from tests.system.forked import Forked

HERE = Path(__file__).parent
ATOLL = (str(Path(sys.executable).with_name("atoll")),)
_LOG_TAIL = 4000
_PYTHON = sys.executable
_FORKED = {
    (*ATOLL, "client", "start", "personal:Personal"): "silo",  # it needs torch
    (*ATOLL, "server"): "server",
    (*ATOLL, "client"): "server",
    (*ATOLL, "aggregator"): "server",
    (*ATOLL, "run"): "server",
    (_PYTHON, str(HERE / "dying_server.py"), "server"): "server",
    (_PYTHON, str(HERE / "eager_client.py"), "client"): "server",
    (_PYTHON, str(HERE / "skewed.py")): "server",
    (*ATOLL, "silo", "join"): "silo",
    (_PYTHON, str(HERE / "held_join.py")): "silo",
}
"""First words of commands that are forked, with the kind of their forker; others start by themselves."""

T = TypeVar("T")


class Process:
    """A running command, with its lines of standard output, and its standard error in a file.

    Standard input is a pipe (``tell``). The command sees this folder on its import path and as its directory.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        keep_open: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = log.stem
        self._log = log
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        whole = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path()), **(env or {})}
        with log.open("ab") as errors:
            self._popen = _start(arguments, errors.fileno(), whole, tuple(keep_open))
        self._reader = threading.Thread(target=self._read, name=f"reads {self.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def lines(self) -> list[str]:
        """Its standard output so far."""
        with self._news:
            return list(self._lines)

    @property
    def log(self) -> str:
        """Its standard error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        stdin = self._popen.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def wait_for(self, choose: Callable[[list[str]], T | None], what: str, timeout_s: float = WAIT_S) -> T:
        """Wait until ``choose`` finds something in the lines; return it.

        Raises:
            AssertionError: if the output or the time ends first; shows the process's output.
        """
        until = time.monotonic() + timeout_s
        with self._news:
            while (found := choose(self._lines)) is None:
                left = until - time.monotonic()
                if self._ended or left <= 0:
                    raise AssertionError(self._account(f"no {what}"))
                self._news.wait(left)
        return found

    def wait_for_log(self, text: str) -> None:
        """Wait until the process has logged a text; its log is a file, which nothing announces.

        Raises:
            AssertionError: if the process or the time ends first.
        """
        until = time.monotonic() + WAIT_S
        while True:
            running = self.running  # first: it may log the text and end before the log is read
            if text in self.log:
                return
            if not running or time.monotonic() > until:
                raise AssertionError(self._account(f"did not log {text!r}"))
            time.sleep(0.05)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Its exit status, once it has ended and its output is read.

        Raises:
            AssertionError: if it does not end in time.
        """
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._account(f"it still runs after {timeout_s:g} s")) from None
        self._reader.join(timeout_s)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to its children."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """End it as ``kill -9`` does, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """Ask it to end, and wait; its exit status."""
        self.send(signal.SIGTERM)
        return self.wait()

    def destroy(self) -> None:
        """Kill what is left of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._reader.join()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        stdout = self._popen.stdout
        assert stdout is not None
        for line in stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _account(self, problem: str) -> str:
        status = self._popen.poll()
        state = "running" if status is None else f"ended with {status}"
        last = "\n".join(self._lines[-20:])
        return f"{self.name} ({state}): {problem}\n--- output\n{last}\n--- errors\n{self.log[-_LOG_TAIL:]}"


def _start(
    arguments: Sequence[str], errors: int, env: Mapping[str, str], keep_open: tuple[int, ...]
) -> subprocess.Popen[str] | Forked:
    """Fork a process that has loaded what this one needs, if there is one; otherwise start a new process."""
    for words, kind in _FORKED.items():
        if words == tuple(arguments[: len(words)]):
            return Forked(kind, arguments, errors, env, HERE, keep_open)
    return subprocess.Popen(
        list(arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=HERE,
        env=env,
        pass_fds=keep_open,
        start_new_session=True,
        text=True,
    )


def _import_path() -> tuple[str, ...]:
    given = os.environ.get("PYTHONPATH")
    return (str(HERE), given) if given else (str(HERE),)


def atoll(*arguments: str) -> Any:
    """Run a command in a fork; returns its ``--json`` output."""
    with tempfile.TemporaryFile() as errors:
        done = Forked("server", (*ATOLL, *arguments, "--json"), errors.fileno(), os.environ, Path.cwd())
        assert done.stdout is not None
        answer = done.stdout.read()
        code = done.wait(WAIT_S)
        done.close()
        errors.seek(0)
        assert code == 0, errors.read().decode()
    return json.loads(answer)


@dataclass(frozen=True)
class Daemon:
    """A process that reports that it serves, and the descriptor on which it does so."""

    process: Process
    ready: int

    def serves(self) -> dict[str, Any]:
        """Wait until it serves; returns its addresses, and an empty dictionary if it ended before. Call it once."""
        with os.fdopen(self.ready) as pipe:
            line = pipe.readline()
        return json.loads(line) if line else {}


class Nursery:
    """Starts processes, and ends those that still run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[Process] = []
        # Short, for the names of Unix sockets; a server that is killed leaves its own behind.
        self._scratch = tempfile.TemporaryDirectory(prefix="at-")

    def start(
        self,
        arguments: Sequence[str],
        name: str,
        *,
        keep_open: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command; its errors go to ``<name>.log``."""
        inside = {"TMPDIR": self._scratch.name, **(env or {})}
        process = Process(arguments, self.folder / f"{name}.log", keep_open=keep_open, env=inside)
        self._processes.append(process)
        return process

    def launch(self, arguments: Sequence[str], name: str, env: Mapping[str, str] | None = None) -> Daemon:
        """Start a command that reports on ``--ready-fd`` that it serves."""
        ready, written = os.pipe()
        process = self.start((*arguments, "--ready-fd", str(written)), name, keep_open=(written,), env=env)
        os.close(written)
        return Daemon(process, ready)

    def close(self) -> None:
        """End everything that was started here, last first."""
        while self._processes:
            self._processes.pop().destroy()
        self._scratch.cleanup()


@contextlib.contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """A nursery whose processes do not outlive the block."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Nursery(folder)
    try:
        yield made
    finally:
        made.close()
