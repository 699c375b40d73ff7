"""Start processes and always end them: each runs in its own session and is ended with all its children."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

TAIL_LINES = 25
GRACE_S = 5.0
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildFailedError(Exception):
    """A process ended unexpectedly; the message contains the end of its log."""


class EndedBySignalError(BaseException):
    """SIGTERM or SIGHUP was received. Like KeyboardInterrupt it is not an ``Exception``."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@dataclass(frozen=True)
class Child:
    """A started process and the file that holds its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    watcher: threading.Thread


class Processes:
    """The processes of one federation. Leaving the context ends all of them, in the reverse order of starting.

    A child that ends on its own sets ``failure`` and calls ``on_failure`` (from another thread), once.
    """

    def __init__(self, logs: Path, grace_s: float = GRACE_S) -> None:
        self._logs = logs
        self._grace_s = grace_s
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._ending = False
        self._failed = threading.Event()
        self.failure: ChildFailedError | None = None
        self.on_failure: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start ``command``, which begins with an absolute path; its output goes to ``<logs>/<name>.log``."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as output, _held_back():
            process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                pass_fds=pass_fds,
                start_new_session=True,
            )
            watcher = threading.Thread(target=self._watch, args=(name, process, log), daemon=True)
            self._children.append(Child(name, process, log, watcher))
            watcher.start()

    def check(self, wait_s: float = 0.0) -> None:
        """Raise the failure of a child, if there is one now or within ``wait_s``.

        Raises:
            ChildFailedError: names the process, with the end of its log.
        """
        self._failed.wait(wait_s)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """End every process and its children: SIGTERM, a short grace period, SIGKILL. May be called again."""
        with self._lock:
            self._ending = True
        with _undisturbed():
            for child in reversed(self._children):
                _signal_group(child, signal.SIGTERM)
            end = time.monotonic() + self._grace_s
            for child in reversed(self._children):
                child.watcher.join(max(0.0, end - time.monotonic()))
                _signal_group(child, signal.SIGKILL)
                child.process.wait()
                child.watcher.join()
            self._children.clear()

    def _watch(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        how = _wait_for_end(process)
        with self._lock:
            if self._ending or self.failure is not None:
                return
            message = f"{name} ended with {how}; the end of its log:\n{tail(log)}"
            self.failure = ChildFailedError(message)
        self._failed.set()
        self.on_failure()


def guarded(command: Sequence[str]) -> list[str]:
    """The command, wrapped so that it gets SIGTERM when this process dies (Linux only)."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("child.py")), str(os.getpid()), *command]


def start_ready(
    processes: Processes, name: str, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> bytes:
    """Start a command that takes ``--ready-fd``, and wait for the line that it writes there.

    Raises:
        ChildFailedError: if the command ends, or writes nothing within ``timeout_s``.
    """
    reading, writing = os.pipe()
    try:
        processes.start(name, [*command, "--ready-fd", str(writing)], environment, (writing,))
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        line = read_line(pipe.fileno(), timeout_s)
    if not line:
        processes.check(wait_s=1.0)
        raise ChildFailedError(f"the {name} does not serve after {timeout_s:.0f} s")
    return line


def read_line(descriptor: int, timeout_s: float) -> bytes:
    """One line from a pipe; empty if the pipe closes or the time is over before the line is complete."""
    line, end = b"", time.monotonic() + timeout_s
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        piece = os.read(descriptor, 65_536) if readable else b""
        if not piece:
            break
        line += piece
    return line if line.endswith(b"\n") else b""


@contextmanager
def raising_on_signals() -> Iterator[None]:
    """Raise ``EndedBySignalError`` in the main thread on SIGTERM and SIGHUP, as Ctrl-C raises KeyboardInterrupt."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        raise EndedBySignalError(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:]) or "  | (empty)"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore further signals, so that a second Ctrl-C does not interrupt the clean-up, whose time is bounded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _held_back() -> Iterator[None]:
    """Block signals, so that none arrives between the start of a child and its registration."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(child: Child, number: int) -> None:
    """Send a signal to the child's session. The child has not been reaped, so its id cannot be another process's."""
    try:
        os.killpg(child.process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _wait_for_end(process: subprocess.Popen[bytes]) -> str:
    """Wait for a process and describe how it ended; on Linux it is not reaped, so its id cannot be reused."""
    if sys.platform != "linux":
        code = process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    try:
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # reaped by ``stop``
        return "no known code"
    if found is None or found.si_code == os.CLD_EXITED:
        return f"exit code {found.si_status if found else 0}"
    return f"signal {signal.Signals(found.si_status).name}"
