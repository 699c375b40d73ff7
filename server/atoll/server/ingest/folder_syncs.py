"""Group commit of folder syncs: requests that wait while a folder is being synced share its next sync."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from atoll.server.disk.space import fsync_path

KEPT = 64
"""Maximum number of folders to remember; a forgotten folder's next sync includes its parents."""


@dataclass(eq=False, slots=True)
class _Folder:
    """Syncs of one folder.

    Attributes:
        turn: lock of the thread that syncs.
        counting: lock for ``begun`` and ``parents_due``.
        begun: number of syncs so far, including the current one.
        succeeded: number of the newest successful sync; guarded by ``turn``.
        parents_due: number of the first sync that must include the parents; None once the folder's name in them is
            durable.
    """

    turn: Lock = field(default_factory=Lock)
    counting: Lock = field(default_factory=Lock)
    begun: int = 0
    succeeded: int = 0
    parents_due: int | None = 1


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A request for a sync that begins after the request."""

    _path: Path
    _parents: int
    _folder: _Folder
    _number: int

    def finish(self) -> None:
        """Return when such a sync has succeeded, in this thread or another one.

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
    """Makes names in folders durable, with one sync for all threads that wait for the same folder (group commit).

    The first sync of a folder includes its parents, which hold the folder's name, and so does the first successful one
    after ``before_making``.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._folders: OrderedDict[Path, _Folder] = OrderedDict()

    def before_making(self, folder: Path) -> None:
        """Make the next sync include the parents, since the caller is about to create the folder.

        Call this before the folder exists: its contents are then synced with the parents, even if its creator fails or
        is overtaken by another thread.
        """
        known = self._of(folder)
        with known.counting:
            known.parents_due = known.begun + 1

    def request(self, folder: Path, parents: int) -> SyncRequest:
        """Request a sync of a folder, and of its nearest ``parents`` if they may lack its name.

        Args:
            folder: the folder.
            parents: number of parents; always the same for one folder.
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
