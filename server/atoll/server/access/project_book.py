"""Creates, limits and closes the projects of a server; cached, since only this process changes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlalchemy import Connection

from atoll.server.access.quotas import check_no_run
from atoll.server.errors import ConflictError
from atoll.server.identity import DEFAULT_PROJECT, check_project
from atoll.server.stores import Project, Reader, RecordMissingError, Writer, projects, tokens

log = logging.getLogger(__name__)

T = TypeVar("T")
MAX_PROJECTS = 1000
"""Maximum number of projects of one server, including closed ones."""


@dataclass(frozen=True)
class Quota:
    """A project's quotas; None for unlimited. See ``stores.projects.Project``."""

    runs: int | None = None
    participants: int | None = None
    model_bytes: int | None = None

    def of(self, project: Project) -> Project:
        """The project with these quotas."""
        return replace(
            project, max_runs=self.runs, max_participants=self.participants, max_model_bytes=self.model_bytes
        )


class ProjectBook:
    """The projects.

    Args:
        writer: the database's writer.
        reader: the database's readers.
        clock: epoch seconds, UTC.
    """

    def __init__(self, writer: Writer, reader: Reader, clock: Callable[[], float]) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._known: Mapping[str, Project] | None = None

    async def all(self) -> Mapping[str, Project]:
        """All projects by name, in order of name."""
        if self._known is None:
            self._known = {one.name: one for one in await self._reader.run(projects.listed)}
        return self._known

    async def get(self, name: str) -> Project:
        """The project of this name.

        Raises:
            RecordMissingError: if there is no project of this name.
        """
        found = (await self.all()).get(name)
        if found is None:
            raise RecordMissingError("project", name)
        return found

    async def several(self) -> bool:
        """Whether there is another project than ``default``."""
        return len(await self.all()) > 1

    async def create(self, name: str, quota: Quota, *, by: str) -> Project:
        """Create a project.

        Raises:
            NameFormatError: for an invalid name.
            ConflictError: if the name is taken, or there are too many projects.
        """
        check_project(name)
        there = await self.all()
        if name in there:
            raise ConflictError(
                "project.exists",
                f"there is a project {name}",
                "choose another name; that of a closed project is not used again",
            )
        if len(there) >= MAX_PROJECTS:
            raise ConflictError(
                "project.many", f"there are {len(there)} projects; at most {MAX_PROJECTS}", "use one of them"
            )
        made = quota.of(Project(name, self._clock(), by))
        await self._changed(lambda connection: projects.add(connection, made))
        log.info("project %s made by operator %s", name, by)
        return made

    async def set_quota(self, name: str, quota: Quota, *, by: str) -> Project:
        """Change a project's quotas, which then apply to anything new.

        Raises:
            RecordMissingError: if there is no project of this name.
        """
        changed = quota.of(await self.get(name))
        await self._changed(lambda connection: projects.put(connection, changed))
        log.info("project %s given quotas by operator %s: %s", name, by, quota)
        return changed

    async def close(self, name: str, *, by: str) -> tuple[Project, int]:
        """Close a project; also returns how many unused join tokens became void.

        Raises:
            RecordMissingError: if there is no project of this name.
            ConflictError: if it is ``default``, is already closed, or has a run that has not ended.
        """
        if name == DEFAULT_PROJECT:
            raise ConflictError(
                "project.default", f"{name} is always there, so it cannot be closed", "limit it with quotas"
            )
        found, now = await self.get(name), self._clock()
        if found.closed_at is not None:
            raise ConflictError("project.closed", f"project {name} is closed already", "nothing is left to do")
        closed = replace(found, closed_at=now)

        def work(connection: Connection) -> int:
            check_no_run(connection, name)
            projects.put(connection, closed)
            return tokens.void_of_project(connection, name, at=now)

        void = await self._changed(work)
        log.info("project %s closed by operator %s; %d unused join tokens are void", name, by, void)
        return closed, void

    async def _changed(self, work: Callable[[Connection], T]) -> T:
        try:
            return await self._writer.run(work)
        finally:
            self._known = None  # even after an error, since the change may have been stored
