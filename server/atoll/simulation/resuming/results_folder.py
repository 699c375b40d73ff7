"""Open, lock and check the folder of a simulation that can be resumed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from atoll.server.stores.blob_place import BLOBS_FOLDER
from atoll.server.stores.database_place import DATABASE_FILE, LOG_SUFFIXES
from atoll.server.stores.store import PARTIALS_FOLDER, SPOOL_FOLDER
from atoll.simulation.errors import SetupError
from atoll.simulation.result import read
from atoll.simulation.resuming.asked import differences, further_rounds, with_rounds_of
from atoll.simulation.resuming.kept_state import KeptState, kept_state

log = logging.getLogger(__name__)

LOCK_FILE = "simulation.lock"
_SHOWN = 3
CREDENTIALS_FOLDER, PARTICIPANTS_FOLDER = "ca", "participants"
_FOLDERS = (BLOBS_FOLDER, SPOOL_FOLDER, PARTIALS_FOLDER, CREDENTIALS_FOLDER, PARTICIPANTS_FOLDER)
_PASSING = (SPOOL_FOLDER, PARTIALS_FOLDER, CREDENTIALS_FOLDER)
_FILES = (DATABASE_FILE, *(f"{DATABASE_FILE}{suffix}" for suffix in LOG_SUFFIXES), "server.lock")


@dataclass(frozen=True)
class ResultsFolder:
    """A folder locked by this process.

    Attributes:
        path: the folder.
        kept: its last commit; None if nothing was committed yet.
        extends: whether its run has ended and more rounds are requested.
    """

    path: Path
    kept: KeptState | None
    extends: bool = False

    @classmethod
    @contextlib.contextmanager
    def taken(cls, path: Path, asked: Mapping[str, Any]) -> Iterator[ResultsFolder]:
        """Open a folder, created if missing, for this request; afterwards it is at the last commit.

        It may contain an ended run with fewer rounds.

        Raises:
            SetupError: if another process uses it, or it contains another simulation or other files.
        """
        with _locked(path):
            kept = _kept(path)
            extends = kept is not None and kept.boundary.ended and further_rounds(kept.asked, asked)
            found = cls(path, kept, extends)
            if kept is None:
                found._empty()
            elif said := differences(with_rounds_of(kept.asked, asked) if extends else kept.asked, asked):
                raise SetupError(
                    f"folder = {path} holds another simulation: {said}; ask for the same again, or give another folder"
                )
            yield found

    def tidy(self) -> None:
        """Remove files that are not needed after the run's end."""
        for name in _PASSING:
            shutil.rmtree(self.path / name, ignore_errors=True)

    def _empty(self) -> None:
        """Remove the files of a simulation that was killed before its first commit."""
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)


def model_path(folder: Path, blob: str) -> Path:
    """The file in a simulation's folder that begins with a model's bytes."""
    return folder / BLOBS_FOLDER / blob[:2] / blob


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock. Worker processes inherit it, so it is free once the last of them has ended."""
    descriptor = _opened(path)
    try:
        _lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not (path / LOCK_FILE).exists():
            _check_empty(path)
        return os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"folder = {path} cannot be used: {error.strerror}; give a folder to write to") from error


def _check_empty(path: Path) -> None:
    """Refuse a folder that contains anything but hidden files."""
    foreign = sorted(found.name for found in path.iterdir() if not found.name.startswith("."))
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        raise SetupError(
            f"folder = {path} has {', '.join(foreign[:_SHOWN])}{more}, and no simulation to resume; give an "
            "empty folder, or one that is not there yet"
        )


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        if not holder.isdigit() or _is_alive(int(holder)):
            raise SetupError(
                f"folder = {path} is in use by process {holder or 'unknown'}; wait for its end, or give another folder"
            ) from None
        log.info("waiting for the workers of process %s, which was killed, to end", holder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kept(path: Path) -> KeptState | None:
    if not (path / DATABASE_FILE).exists():
        return None
    try:
        return read(path, partial(kept_state, model_path=partial(model_path, path)))
    except SQLAlchemyError as error:
        raise SetupError(f"folder = {path}: its database cannot be read: {error}; give another folder") from error
