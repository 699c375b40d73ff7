"""Run commands in a pseudo-terminal and record the times of their output, as a person sees it."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

_PIECE = 1 << 16
_ENDS_WITHIN_S = 60.0


class TerminalError(Exception):
    """A command failed or did not write the expected text; the message has its output."""


class Terminal:
    """A command of bash with its jobs, in a pseudo-terminal.

    Args:
        command: one or several lines of bash.
        folder: working directory.
        environment: of its processes.
    """

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._news = threading.Condition()
        self._text = ""
        self._times = [time.monotonic()]
        self._ours, theirs = pty.openpty()
        self._shell = subprocess.Popen(
            ["/bin/bash", "-euc", command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def ended(self, timeout_s: float) -> None:
        """Wait until the command has ended; its background jobs may continue.

        Raises:
            TerminalError: if it fails, or takes longer.
        """
        try:
            code = self._shell.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self._error(f"still runs after {timeout_s:g} s") from None
        if code:
            with self._news:  # for the message: jobs may hold the terminal open
                self._news.wait_for(lambda: self._ours < 0, _ENDS_WITHIN_S)
            raise self._error(f"ended with {code}")
        self._note("")

    def wrote(self, text: str, timeout_s: float, times: int = 1) -> None:
        """Wait until a text was written this many times.

        Raises:
            TerminalError: if that takes longer, or the command and its jobs have ended.
        """
        with self._news:
            self._news.wait_for(lambda: self._ours < 0 or self._text.count(text) >= times, timeout_s)
            if self._text.count(text) < times:
                raise self._error(f"did not write {text!r} {times} times, or not in {timeout_s:g} s")

    @property
    def silence_s(self) -> float:
        """The longest time without output so far, from the start of the command."""
        with self._news:
            return max((later - earlier for earlier, later in pairwise(self._times)), default=0.0)

    def close(self) -> None:
        """End the command and its jobs."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shell.wait(_ENDS_WITHIN_S)
                break
        with self._news:
            self._news.wait_for(lambda: self._ours < 0, _ENDS_WITHIN_S)

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, _PIECE)
            except OSError:  # Linux: the last process that held the terminal has ended
                piece = b""
            if not piece:
                break
            self._note(piece.decode(errors="replace"))
        with self._news:
            os.close(self._ours)
            self._ours = -1
            self._news.notify_all()

    def _note(self, text: str) -> None:
        with self._news:
            self._text += text
            self._times.append(time.monotonic())
            self._news.notify_all()

    def _error(self, what: str) -> TerminalError:
        return TerminalError(f"{self._command!r} {what}; it wrote:\n{self._text}")
