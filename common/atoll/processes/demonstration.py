"""What the demonstrations share: their folder, the server that they start, and commands that join it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll.processes.supervise import Processes, start_ready

ATOLL = (sys.executable, "-c", "from atoll.client.cli import main; main()")
"""The ``atoll`` command of this Python, independent of where it is installed."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
READY_S = 120.0
"""Seconds in which a server must serve; a first start may compile the aggregation kernels."""


class KeepError(Exception):
    """The folder to keep cannot be used. The arguments are the reason and, if there is one, a remedy."""


@dataclass(frozen=True)
class Ready:
    """A serving server: main and enrolment address (host:port), and the operator's credential."""

    address: str
    enrolment: str
    operator: Path


@contextmanager
def workplace(keep: Path | None, prefix: str) -> Iterator[Path]:
    """A temporary folder, removed at the end; or the one to keep, which must be new or empty.

    Raises:
        KeepError: if ``keep`` cannot be used.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True, mode=0o700)
        occupied = any(keep.iterdir())
    except OSError as error:
        raise KeepError(f"--keep {keep} cannot be used: {error.strerror}") from error
    if occupied:
        raise KeepError(f"--keep {keep} is not empty", "name a new directory")
    yield keep.absolute()


def start_server(processes: Processes, data: Path, options: Sequence[str], environment: Mapping[str, str]) -> Ready:
    """Start ``atoll server start`` on this machine's loopback address, and wait until it serves.

    Raises:
        ChildFailedError: if it ends, or does not serve in time.
    """
    command = [*ATOLL, "server", "start", "--data", str(data), "--host", "127.0.0.1", "--drain-s", "0.5", *options]
    facts = json.loads(start_ready(processes, "server", command, {**ONE_THREAD, **environment}, READY_S))
    return Ready(facts["address"], facts["enrolment"], Path(facts["operator"]))


def start_participant(processes: Processes, name: str, words: Sequence[str], state: Path, join_token: str) -> None:
    """Start an ``atoll`` command that joins with a token, which only this user can read in the new state directory."""
    token = write_secret(state, "join-token", join_token)
    command = [*ATOLL, *words, "--join", f"@{token}", "--state", str(state)]
    processes.start(name, command, ONE_THREAD)


def write_secret(folder: Path, name: str, text: str) -> Path:
    """Make a folder with a file that only this user can read."""
    folder.mkdir(mode=0o700)
    path = folder / name
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path
