"""Finds the project of an operator's call and the caller's role there; all isolation of projects is enforced here.

``supervision`` finds the scope of every call before its handler runs, from the call's metadata and from the things that
the request names (``operations.Concern``). A handler gets the scope by ``current_scope`` and reads within it. Things in
a project where the operator has no role are answered as if they did not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from atoll.server.access.project_book import ProjectBook
from atoll.server.access.quotas import require_open
from atoll.server.access.role_checks import organisation_error
from atoll.server.errors import ForbiddenError, InvalidRequestError, ServerError
from atoll.server.identity import DEFAULT_PROJECT, OperatorRole, Rights
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.operations import Concern, Operation
from atoll.server.stores import Reader, RecordMissingError, charges, participants, projects
from atoll.wire.project import PROJECT

NOWHERE = ""
"""The project of a call that may see nothing; no project has this name."""
_SHOWN = 10


@dataclass(frozen=True)
class Scope:
    """The part of the server that a call may see.

    Attributes:
        operator: the operator's name.
        rights: all the operator's rights.
        project: the only project of the call; None for all.
        role: the operator's role there; None if it has none.
        organisation: the only organisation whose participants and join tokens the operator may see; empty for all.
    """

    operator: str
    rights: Rights
    project: str | None
    role: OperatorRole | None
    organisation: str = ""

    @property
    def place(self) -> str:
        """The project in which the call creates things."""
        return DEFAULT_PROJECT if self.project is None else self.project

    def has(self, project: str) -> bool:
        """Whether the call may see things in a project."""
        return self.project in (None, project)

    def is_still_allowed(self, rights: Rights | None) -> bool:
        """Whether an operator who now has these rights may still see as much of the project as when the call began."""
        own = None if rights is None or self.project is None else rights.within(self.project)
        return self.project is None or (own is not None and own.organisation in ("", self.organisation))

    def population(self, name: str) -> str:
        """The full name of a population that the call names."""
        return projects.qualified(self.place, name)


_CURRENT: ContextVar[Scope] = ContextVar("scope of an operator's call")


def current_scope() -> Scope:
    """The scope of the operator's call that the current task handles.

    Raises:
        LookupError: outside of such a call.
    """
    return _CURRENT.get()


def enter(scope: Scope) -> None:
    """Handle the call in the current task within a scope."""
    _CURRENT.set(scope)


@dataclass(frozen=True)
class Found:
    """The scope of a call, and the refusal to raise after its role has been checked; None to proceed."""

    scope: Scope
    refusal: ServerError | None = None


class Scopes:
    """Finds the scope of each call.

    Args:
        book: the projects.
        reader: the database's readers.
    """

    def __init__(self, book: ProjectBook, reader: Reader) -> None:
        self.book = book
        self._reader = reader

    async def find(self, operation: Operation, caller: Caller, context: Context, request: Any) -> Found:
        """The scope of a call.

        Raises:
            RecordMissingError: if the call names a project that does not exist, or in which the operator has no role.
            InvalidRequestError: if the operator has roles in several projects and the call names none.
            ConflictError: if the call would begin something in a closed project.
            ForbiddenError: if the call is about the whole server and the operator has roles only in single projects, or
                if it goes beyond the organisation of the operator's role.
        """
        rights, concern = caller.rights or Rights(), operation.concern
        if concern is Concern.SERVER:
            if rights.everywhere is None:
                raise _whole_server(caller.name)
            return Found(Scope(caller.name, rights, None, rights.everywhere))
        asked = str(dict(context.invocation_metadata() or ()).get(PROJECT, ""))
        if asked and (rights.within(asked) is None or asked not in await self.book.all()):
            raise RecordMissingError("project", asked)
        base = _chosen(caller.name, rights, asked)
        if base is not None:
            if base.project and concern is not Concern.SELF:
                await self._require_there(base.project)
            base = _with_own_role(operation, base)
        if base is None and concern is not Concern.SELF and not _names_one(concern, request):
            raise _ambiguous(rights)
        start = base or Scope(caller.name, rights, NOWHERE, None)
        project = await self._reader.run(_project_of, concern, request, start.place)
        if project is not None:
            return await self._within(operation, start, project, asked, request)
        if base is None and concern is not Concern.SELF:
            raise _missing(concern, request)
        scope = _limited(operation, start)
        if concern is Concern.PROJECT:
            await self._require_open(operation, scope.place)
        return Found(scope)

    async def _within(self, operation: Operation, start: Scope, project: str, asked: str, request: Any) -> Found:
        """The scope of a call about things in a project."""
        own, missing = start.rights.within(project), _missing(operation.concern, request)
        if own is not None:
            await self._require_there(project)
        if own is None or asked not in ("", project):
            if start.project == NOWHERE:
                raise missing
            return Found(_limited(operation, start), missing)  # as for a thing that does not exist
        wanted = replace(start, project=project, role=own.role, organisation=own.organisation)
        scope = _limited(operation, wanted)
        if scope.organisation and not await self._reader.run(_is_of, request, scope.organisation):
            return Found(scope, missing)
        await self._require_open(operation, project)
        return Found(scope)

    async def _require_there(self, project: str) -> None:
        """Refuse a role in a project that does not exist, since ``[oidc] project_roles`` may name one."""
        if project not in await self.book.all():
            raise RecordMissingError("project", project)

    async def _require_open(self, operation: Operation, project: str) -> None:
        if operation.begins:
            require_open(await self.book.get(project))

    async def recorded(self, scope: Scope, concern: Concern) -> str:
        """The project to record in the audit log for a call: none while ``default`` is the only one."""
        if not await self.book.several():
            return ""
        about_one = scope.project is not None or concern is Concern.PROJECT
        return scope.place if about_one else ""


def _chosen(name: str, rights: Rights, asked: str) -> Scope | None:
    """The scope of a call before its subject is looked up; None if the operator has roles in several projects."""
    if not asked and rights.everywhere is not None:
        return Scope(name, rights, None, rights.everywhere)
    if not asked and len(rights.projects) > 1:
        return None
    project = asked or next(iter(rights.projects), NOWHERE)
    own = rights.within(project)
    if own is None:
        return Scope(name, rights, NOWHERE, None)
    return Scope(name, rights, project, own.role, own.organisation)


def _with_own_role(operation: Operation, scope: Scope) -> Scope:
    """The scope of a call that changes all projects; in a project with a role of its own, that role applies instead.

    Raises:
        InvalidRequestError: if the call is about all projects and the operator's role in one of them does not allow it.
    """
    if scope.project is not None or operation.concern is not Concern.PROJECT or not operation.action:
        return scope
    if operation.begins:
        own = scope.rights.projects.get(scope.place)
        if own is None:
            return scope
        return replace(scope, project=scope.place, role=own.role, organisation=own.organisation)
    less = [name for name, own in scope.rights.projects.items() if own.role not in operation.roles or own.organisation]
    if less and scope.role in operation.roles:
        raise InvalidRequestError(
            "project.which",
            f"your role does not allow this in all projects: not in {', '.join(sorted(less)[:_SHOWN])}",
            "name the project that it is about: --project",
        )
    return scope


def _limited(operation: Operation, scope: Scope) -> Scope:
    """The scope, if the operation can be limited to its organisation.

    Raises:
        ForbiddenError: if it cannot.
    """
    if scope.organisation and not operation.for_organisation:
        raise organisation_error(scope.operator, scope.organisation, scope.place)
    return scope


def _names_one(concern: Concern, request: Any) -> bool:
    """Whether a request names something whose project can be looked up."""
    if concern is Concern.CHARGES and request.run:
        return True
    if concern in (Concern.CHARGES, Concern.POPULATION):
        return projects.is_qualified(request.population)
    return concern in _KINDS


def _project_of(connection: Connection, concern: Concern, request: Any, place: str) -> str | None:
    """The project of the thing that a request names; None if it names nothing that exists."""
    match concern:
        case Concern.RUN:
            return projects.of_run(connection, request.run)
        case Concern.PARTICIPANT:
            return projects.of_participants(connection, (request.participant,)).get(request.participant)
        case Concern.POPULATION | Concern.CHARGES if request.population:
            return projects.of_population(projects.qualified(place, request.population))
        case Concern.CHARGES if request.run:
            charged = charges.population_of(connection, request.run)
            return projects.of_run(connection, request.run) or (charged and projects.of_population(charged))
        case _:
            return None


def _is_of(connection: Connection, request: Any, organisation: str) -> bool:
    """Whether the participant that a request names belongs to an organisation."""
    found = participants.get(connection, request.participant)
    return found is not None and found.organisation == organisation


_KINDS: Mapping[Concern, str] = {
    Concern.RUN: "run",
    Concern.PARTICIPANT: "participant",
    Concern.POPULATION: "population",
}
"""The kind of thing that a request names, which is also the name of the request's field."""


def _missing(concern: Concern, request: Any) -> RecordMissingError:
    """The error about a missing thing, as its handler would raise it."""
    if concern is Concern.CHARGES:
        concern = Concern.POPULATION if request.population else Concern.RUN
    return RecordMissingError(_KINDS[concern], getattr(request, _KINDS[concern]))


def _ambiguous(rights: Rights) -> InvalidRequestError:
    there = ", ".join(sorted(rights.projects)[:_SHOWN])
    return InvalidRequestError(
        "project.which",
        f"you have roles in several projects, and the call names none: {there}",
        "name one: --project, ATOLL_PROJECT, or atoll project use",
    )


def _whole_server(name: str) -> ForbiddenError:
    return ForbiddenError(
        "operator.role",
        f"this is about the server as a whole; {name} has roles in single projects only",
        "ask an administrator of the server to do it",
    )
