"""Group commit of folder syncs: requests that wait while a folder is being synced share its next sync."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from atoll.server.disk.space import fsync_path


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Folder:
    """Syncs of one folder.

    Attributes:
        turn: held by the thread that syncs.
        counting: held while ``begun`` is read or changed.
        begun: syncs so far, the one under way included.
        succeeded: number of the newest sync that succeeded; under ``turn``.
    """

    turn: Lock = field(default_factory=Lock)
    counting: Lock = field(default_factory=Lock)
    begun: int = 0
    succeeded: int = 0


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A sync that begins after the request was made."""

    _paths: tuple[Path, ...]
    _folder: _Folder
    _number: int

    def finish(self) -> None:
        """Return when such a sync has succeeded, in this thread or another.

        Raises:
            OSError: if the disk refuses, or the folder is gone.
        """
        folder = self._folder
        with folder.turn:
            if folder.succeeded >= self._number:
                return
            with folder.counting:
                folder.begun = number = folder.begun + 1
            for path in self._paths:
                fsync_path(path)
            folder.succeeded = number


class FolderSyncs:
    """Makes the names in folders durable, once for all threads that wait for the same folder (group commit)."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._folders: WeakValueDictionary[Path, _Folder] = WeakValueDictionary()

    def request(self, folder: Path, parents: int) -> SyncRequest:
        """Ask for a sync of a folder and its nearest ``parents``, always the same number for one folder."""
        with self._lock:
            known = self._folders.get(folder)
            if known is None:
                known = self._folders[folder] = _Folder()
        with known.counting:
            return SyncRequest((folder, *list(folder.parents)[:parents]), known, known.begun + 1)
