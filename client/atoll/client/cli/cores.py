"""Divide a machine's cores among its clients: by default PyTorch uses all cores in each client."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import TextIO

from atoll.client import events
from atoll.client.participate import default_state


def shared_folder() -> Path:
    """The folder in which each of this user's clients on this machine holds a locked file."""
    return default_state().parent / "running" / socket.gethostname()


class CoreShare:
    """An observer that limits PyTorch to this client's share of the cores, updated at each task, and forwards events.

    The share is the number of cores that this process may use, divided by this user's running clients, at least one.
    A smaller number of threads that the participant or ``OMP_NUM_THREADS`` sets is kept. The kernel releases a client's
    lock when it ends, however it ends. Without PyTorch it does nothing.

    Args:
        observer: receives every event.
        threads: a fixed number of threads; 0: the share.
        folder: where clients lock their files.

    Raises:
        OSError: if they cannot lock files there.
    """

    def __init__(self, observer: events.Observer, threads: int = 0, folder: Path | None = None) -> None:
        self._observer = observer
        self._threads = threads
        self._folder = folder or shared_folder()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._most = self._taken = 0
        self._own = _locked(self._folder / f"{os.getpid()}-{id(self)}")

    def __call__(self, event: events.Event) -> None:
        """Take the share before a task begins."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(event, events.Invited):
            self._take(torch)
        self._observer(event)

    def _take(self, torch: ModuleType) -> None:
        now: int = torch.get_num_threads()
        if now != self._taken:
            self._most = now  # PyTorch's default, or the participant's own choice
        self._taken = self._threads or min(self._most, self.share())
        torch.set_num_threads(self._taken)

    def share(self) -> int:
        """Threads for this client."""
        return max(1, len(os.sched_getaffinity(0)) // max(1, self.clients()))

    def clients(self) -> int:
        """The number of running clients, including this one; files of ended clients are removed."""
        return sum(map(_is_held, self._folder.iterdir()))

    def close(self) -> None:
        """Give the share back."""
        Path(self._own.name).unlink(missing_ok=True)
        self._own.close()


def _locked(path: Path) -> TextIO:
    """Make a file and lock it; again if another client removed it before it was locked."""
    while True:
        file = path.open("w", encoding="ascii")
        fcntl.flock(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if _is_at(path, file):
                return file
        file.close()


def _is_held(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), path.open(encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        if not _is_at(path, file):  # removed and made again since it was opened
            return _is_held(path)
        path.unlink(missing_ok=True)
    return False


def _is_at(path: Path, file: TextIO) -> bool:
    return os.path.samestat(path.stat(), os.fstat(file.fileno()))
