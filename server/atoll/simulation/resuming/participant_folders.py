"""The files that participants keep: a folder for each state, which is not written to again once a task has left it.

A task works on a copy of the state that its participant was in. Its participant is in the new state once the task's
report is handed in. So a task that was begun and whose report could not count any more has changed nothing, as if it
had not been begun, and a simulation that goes on after a kill finds the states of its last commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

FIRST = "first"
"""The state that a participant has before its first task: empty, or what it has put there to say what it declares."""


@dataclass(frozen=True)
class ParticipantFolders:
    """The states of participants with a ``prepare`` of their own: folders ``NAME/STATE``.

    Args:
        root: the participants' folders.
    """

    root: Path

    def first(self, name: str) -> Path:
        """The folder of the first state, to be written to before the first task."""
        folder = self.root / name / FIRST
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def copied(self, name: str, before: str, after: str) -> Path:
        """A folder for the state ``after``, with the content of the state ``before``; what was there is removed."""
        source, folder = self.root / name / (before or FIRST), self.root / name / after
        shutil.rmtree(folder, ignore_errors=True)
        if source.exists():
            shutil.copytree(source, folder, symlinks=True)
        else:
            folder.mkdir(parents=True)
        return folder

    def made(self, name: str, after: str) -> Path:
        """The folder that ``copied`` has made before."""
        return self.root / name / after

    def keep_only(self, name: str, states: Collection[str]) -> None:
        """Remove every other state of a participant."""
        of = self.root / name
        for folder in of.iterdir() if of.exists() else ():
            if folder.name not in states:
                shutil.rmtree(folder, ignore_errors=True)


class ParticipantStates:
    """The state that each participant is in.

    Args:
        folders: have the states.
        commits: whether states of the last commit are kept until the next.
    """

    def __init__(self, folders: ParticipantFolders, *, commits: bool) -> None:
        self._folders = folders
        self._commits = commits
        self._now: dict[str, str] = {}
        self._changed: set[str] = set()

    def go_on(self, states: Mapping[str, str]) -> None:
        """Begin with the states of a commit."""
        self._now = dict(states)
        self._changed = set(self._now)

    def of(self, name: str) -> str:
        """The state that a participant is in; empty: the first one."""
        return self._now.get(name, "")

    def now(self) -> Mapping[str, str]:
        """Every participant that is not in its first state, with its state."""
        return dict(self._now)

    def move(self, name: str, state: str) -> None:
        """A participant's task was handed in."""
        self._now[name] = state
        if self._commits:
            self._changed.add(name)
        else:
            self._folders.keep_only(name, {state})

    def committed(self, needed: Mapping[str, Collection[str]]) -> None:
        """A commit was made: remove the states that neither it nor, by participant, an update that waits needs."""
        for name in self._changed:
            kept = {self._now.get(name, ""), *needed.get(name, ())}
            self._folders.keep_only(name, {state or FIRST for state in kept})
        self._changed = set(needed)
