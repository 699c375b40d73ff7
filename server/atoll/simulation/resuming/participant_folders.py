"""The folders of participants that keep files, with the content of the last commit kept until the next."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ParticipantFolders:
    """One folder for each participant with a ``prepare`` of its own.

    Args:
        root: the participants' folders.
        undo: has a folder for each commit, by its number, with the participants' folders as they were then, of those
            that have worked since; the processes that participants work in find the newest there. None: none is kept.
    """

    root: Path
    undo: Path | None = None

    def of(self, name: str) -> Path:
        """The folder of a participant that is about to work."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        if self.undo is not None and (newest := max(_numbers(self.undo), default=None)) is not None:
            _copy_once(folder, self.undo / str(newest) / name)
        return folder

    def begin(self, number: int) -> None:
        """A commit was made: keep the folders from now on as they are."""
        if self.undo is not None:
            (self.undo / str(number)).mkdir(parents=True, exist_ok=True)
            self._remove_others(number)

    def restore(self, number: int) -> None:
        """Give every folder the content that it had at a commit; may be repeated."""
        if self.undo is not None:
            self._remove_others(number)
            kept = self.undo / str(number)
            kept.mkdir(parents=True, exist_ok=True)
            for copy in kept.iterdir():
                if _is_whole(copy):
                    shutil.rmtree(self.root / copy.name, ignore_errors=True)
                    shutil.copytree(copy, self.root / copy.name, symlinks=True)

    def _remove_others(self, number: int) -> None:
        if self.undo is not None:
            for other in _numbers(self.undo) - {number}:
                shutil.rmtree(self.undo / str(other))


def _numbers(undo: Path) -> set[int]:
    try:
        return {int(folder.name) for folder in undo.iterdir()}
    except FileNotFoundError:
        return set()


def _copy_once(folder: Path, copy: Path) -> None:
    """Keep a copy unless there is one. No participant's name begins with a dot."""
    if not copy.exists():
        part = copy.with_name(f".{copy.name}")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(folder, part, symlinks=True)
        part.rename(copy)


def _is_whole(copy: Path) -> bool:
    return not copy.name.startswith(".")
