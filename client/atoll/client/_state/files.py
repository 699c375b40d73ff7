"""Small private files of the state directory, replaced atomically, and the directory's lock."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from atoll.client.errors import StateInUseError, UsageError

try:
    import fcntl
except ImportError:  # not POSIX: two processes in one state directory are not detected there
    fcntl = None  # type: ignore[assignment]

_LOOK_S = 0.01
_LOOKS_S = 5.0
"""Seconds that a process may take to look at a lock, before it counts as one that keeps it."""


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a private file (0600) atomically: it always has either its old content or the new one.

    ``durable``: the file is on disk when this returns, and survives a loss of power.
    """
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        _sync_directory(path.parent)


def read_private(path: Path) -> str | None:
    """The text of a file; None if there is none.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Lock the state directory for this process; it is created if necessary.

    Raises:
        StateInUseError: if another process has locked it; names that process.
        UsageError: if the directory cannot be created or written.
    """
    path = state / "lock"
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot use {state} as state directory: {error}") from None
    with file:
        _lock(file, state)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: TextIO, state: Path) -> None:
    """Lock a state directory's file. ``holder_of`` in another process locks it, too, for an instant: that passes."""
    until = time.monotonic() + _LOOKS_S
    while fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = holder_of(state)
        else:
            return
        if holder is not None:
            raise StateInUseError(f"process {holder} already works in {state}; give this one another --state")
        if time.monotonic() > until:
            raise StateInUseError(
                f"a process that only looks at {state} (`atoll client status`) keeps it locked: end that process"
            )
        time.sleep(_LOOK_S)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Lock a private file against other processes while it is read and replaced; creates its folder.

    Raises:
        UsageError: if the folder cannot be created or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = path.with_suffix(".lock").open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot use {path.parent} for {path.name}: {error}") from None
    with file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def holder_of(state: Path) -> int | None:
    """The id of the process that has locked the directory; None if it is not locked."""
    path = state / "lock"
    if fcntl is None or not path.exists():
        return None
    with path.open("r", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = file.read().strip()
            return int(text) if text.isdigit() else 0
    return None


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
