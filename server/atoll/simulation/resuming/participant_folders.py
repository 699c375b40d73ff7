"""Participants' files: one folder for each state, which is immutable once its task has ended.

A task works on a copy of its participant's state. The participant changes to the new state when the task's report is
handed in. So a task whose report can no longer count has changed nothing, and a simulation that resumes after a kill
finds the states of its last commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

FIRST = "first"
"""The state before a participant's first task: empty, or the files that it wrote for its declaration."""


@dataclass(frozen=True)
class ParticipantFolders:
    """The states of participants with a ``prepare`` of their own: folders ``NAME/STATE``.

    Args:
        root: the participants' folders.
    """

    root: Path

    def first(self, name: str) -> Path:
        """The folder of the first state, writable before the first task."""
        folder = self.root / name / FIRST
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def copied(self, name: str, before: str, after: str) -> Path:
        """A folder for the state ``after``, with the content of the state ``before``; replaces an existing folder."""
        source, folder = self.root / name / (before or FIRST), self.root / name / after
        shutil.rmtree(folder, ignore_errors=True)
        if source.exists():
            shutil.copytree(source, folder, symlinks=True)
        else:
            folder.mkdir(parents=True)
        return folder

    def made(self, name: str, after: str) -> Path:
        """The folder that ``copied`` created earlier."""
        return self.root / name / after

    def keep_only(self, name: str, states: Collection[str]) -> None:
        """Remove every other state of a participant."""
        of = self.root / name
        for folder in of.iterdir() if of.exists() else ():
            if folder.name not in states:
                shutil.rmtree(folder, ignore_errors=True)


class ParticipantStates:
    """The current state of each participant.

    Args:
        folders: of the states.
        commits: whether states of the last commit are kept until the next one.
    """

    def __init__(self, folders: ParticipantFolders, *, commits: bool) -> None:
        self._folders = folders
        self._commits = commits
        self._now: dict[str, str] = {}
        self._changed: set[str] = set()

    def go_on(self, states: Mapping[str, str]) -> None:
        """Start with the states of a commit."""
        self._now = dict(states)
        self._changed = set(self._now)

    def of(self, name: str) -> str:
        """The current state of a participant; empty: the first one."""
        return self._now.get(name, "")

    def now(self) -> Mapping[str, str]:
        """Every participant that is not in its first state, with its state."""
        return dict(self._now)

    def move(self, name: str, state: str) -> None:
        """Note that a participant's task was handed in."""
        self._now[name] = state
        if self._commits:
            self._changed.add(name)
        else:
            self._folders.keep_only(name, {state})

    def committed(self, needed: Mapping[str, Collection[str]]) -> None:
        """After a commit, remove the states that neither it nor a waiting update of the participant needs."""
        for name in self._changed:
            kept = {self._now.get(name, ""), *needed.get(name, ())}
            self._folders.keep_only(name, {state or FIRST for state in kept})
        self._changed = set(needed)
