"""Group commit of folder syncs: requests that wait while a folder is being synced share its next sync."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from atoll.server.disk.space import fsync_path

KEPT = 64
"""Folders remembered: the one asked for longest ago goes first, and its next sync includes its parents."""


@dataclass(eq=False, slots=True)
class _Folder:
    """Syncs of one folder.

    Attributes:
        turn: held by the thread that syncs.
        counting: held while ``begun`` or ``parents_due`` is read or changed.
        begun: syncs so far, the one under way included.
        succeeded: number of the newest sync that succeeded; under ``turn``.
        parents_due: number of the first sync that must include the parents; None once they have the folder's name.
    """

    turn: Lock = field(default_factory=Lock)
    counting: Lock = field(default_factory=Lock)
    begun: int = 0
    succeeded: int = 0
    parents_due: int | None = 1


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A sync that begins after the request was made."""

    _path: Path
    _parents: int
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
                with_parents = folder.parents_due is not None
            fsync_path(self._path)
            if with_parents:
                for parent in list(self._path.parents)[: self._parents]:
                    fsync_path(parent)
            folder.succeeded = number
            with folder.counting:
                if folder.parents_due is not None and folder.parents_due <= number:
                    folder.parents_due = None


class FolderSyncs:
    """Makes the names in folders durable, once for all threads that wait for the same folder (group commit).

    The first sync of a folder includes its parents, which hold its own name; so does the first one that succeeds after
    ``before_making``.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._folders: OrderedDict[Path, _Folder] = OrderedDict()

    def before_making(self, folder: Path) -> None:
        """Have the next sync include the parents: the caller creates the folder now.

        Call this before the folder exists: its contents are then synced with the parents, also if its
        creator is slower than another thread, or fails.
        """
        known = self._of(folder)
        with known.counting:
            known.parents_due = known.begun + 1

    def request(self, folder: Path, parents: int) -> SyncRequest:
        """Ask for a sync of a folder, and of its nearest ``parents`` if they may lack its name.

        Args:
            folder: what to sync.
            parents: how many of its parents; always the same number for one folder.
        """
        known = self._of(folder)
        with known.counting:
            return SyncRequest(folder, parents, known, known.begun + 1)

    def _of(self, folder: Path) -> _Folder:
        with self._lock:
            known = self._folders.setdefault(folder, _Folder())
            self._folders.move_to_end(folder)
            if len(self._folders) > KEPT:
                self._folders.popitem(last=False)
            return known
