"""Run the server's commands as an operator would: read their JSON, and follow a run line by line."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll.datacenter.errors import FederationError
from atoll.processes import guarded
from atoll.processes.demonstration import ATOLL

COMMAND_S = 120.0
"""Timeout of a command that does not wait for participants."""


class Operator:
    """Runs commands.

    Args:
        data: data directory of the server, which has the operator's credential.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._following: subprocess.Popen[str] | None = None

    def do(self, *words: str) -> Any:
        """Run a command that prints JSON and return its value; None if it printed nothing.

        Raises:
            FederationError: if the command fails, with its message.
        """
        done = subprocess.run(self._line(words), capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if done.returncode:
            raise FederationError(f"`atoll {' '.join(words)}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout else None

    def follow(self, run: str) -> Iterator[str]:
        """Yield a line for each round that has ended, from ``atoll run watch``, until the run ends."""
        with self._watching(run) as process:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            for line in process.stdout:
                yield line.rstrip("\n")

    def abort(self) -> None:
        """Make ``follow`` end; from any thread."""
        with self._lock:
            if self._following is not None:
                self._following.terminate()

    def _line(self, words: Sequence[str]) -> list[str]:
        return guarded([*ATOLL, *words, "--data", str(self._data)])

    @contextmanager
    def _watching(self, run: str) -> Iterator[subprocess.Popen[str]]:
        with self._lock:
            self._following = subprocess.Popen(
                self._line(("run", "watch", run)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        with self._following as process:
            try:
                yield process
            finally:
                self.abort()
