"""The server's commands, as an operator types them: their JSON, and a run followed line by line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll.datacenter.errors import FederationError
from atoll.processes import guarded

ATOLL = (sys.executable, "-c", "from atoll.client.cli import main; main()")
"""The ``atoll`` of this Python, wherever it is installed."""
COMMAND_S = 120.0
"""How long a command may take that does not wait for anybody."""


class Operator:
    """Types commands.

    Args:
        data: the server's data directory, where its credential is.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._following: subprocess.Popen[str] | None = None

    def do(self, *words: str) -> Any:
        """Run a command that prints JSON; what it printed, None if nothing.

        Raises:
            FederationError: with what it said, if it fails.
        """
        done = subprocess.run(self._line(words), capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if done.returncode:
            raise FederationError(f"`atoll {' '.join(words)}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout) if done.stdout else None

    def follow(self, run: str) -> Iterator[str]:
        """A line for each round that has ended, until the run has, as ``atoll run watch`` tells it."""
        with self._watching(run) as process:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            for line in process.stdout:
                yield line.rstrip("\n")

    def abort(self) -> None:
        """Any thread: let ``follow`` come to its end."""
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
