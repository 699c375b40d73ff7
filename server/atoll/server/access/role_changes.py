"""Changes of operators' roles within a transaction, and the refusals of changes that the rules do not allow."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from atoll.server.errors import ConflictError, InvalidRequestError
from atoll.server.identity import OperatorRole, Rights, check_organisation
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.stores import Grant, ProjectGrant, operators, project_roles, projects


@dataclass(frozen=True)
class Given:
    """A role for an operator; ``role`` None removes its role in the project.

    ``project`` None is for all projects; a non-empty ``organisation`` limits the role to that organisation.
    """

    name: str
    role: OperatorRole | None
    project: str | None = None
    organisation: str = ""

    def __str__(self) -> str:
        """The role in words, for the log."""
        where = "" if self.project is None else f" in project {self.project}"
        limited = f" for {self.organisation}" if self.organisation else ""
        return f"{'nothing' if self.role is None else self.role.words}{limited}{where}"


def give_anew(connection: Connection, given: Given, rights: Rights, by: Caller, now: float) -> None:
    """Give an operator without a valid credential a role, replacing all earlier roles of its name.

    Raises:
        ConflictError: if the name has roles elsewhere, and the caller is not an administrator of all projects.
    """
    if rights.everywhere is not OperatorRole.ADMINISTRATOR:
        before = project_roles.rights(connection, given.name)
        if before.everywhere is not None or before.projects.keys() - {given.project}:
            raise ConflictError("operator.exists", f"the name {given.name} is taken", "choose another name")
    operators.remove(connection, given.name)
    for project in project_roles.of(connection, given.name):
        project_roles.remove(connection, given.name, project)
    if given.project is None:
        operators.put(connection, Grant(given.name, given.role or OperatorRole.OPERATOR, by.name, now))
    else:
        set_in_project(connection, given, by, now)


def set_in_project(connection: Connection, given: Given, by: Caller, now: float) -> None:
    """Set or remove a role in one project.

    Raises:
        RecordMissingError: if there is no such project.
        InvalidRequestError: if an operator's last role is to be removed, or is to be limited to an organisation
            although the operator has a role in all projects.
    """
    project = projects.get(connection, given.project or "").name
    standing = project_roles.rights(connection, given.name)
    if given.role is None:
        if standing.everywhere is None and not standing.projects.keys() - {project}:
            raise InvalidRequestError(
                "operator.role_name",
                f"{given.name} would have no role at all",
                f"revoke it: atoll operator revoke {given.name}",
            )
        project_roles.remove(connection, given.name, project)
        return
    if given.organisation:
        check_organisation(given.organisation)
        if standing.everywhere is not None:
            raise InvalidRequestError(
                "operator.role_limit",
                f"{given.name} has a role in all projects, and so sees every organisation",
                "make an operator with a role in this project only",
            )
    grant = ProjectGrant(given.name, project, given.role, given.organisation, by.name, now)
    project_roles.put(connection, grant)


def require_project_of(organisation: str, project: str | None) -> None:
    """Refuse a role for one organisation without a project, since such a role belongs to one project."""
    if organisation and project is None:
        raise InvalidRequestError(
            "operator.role_limit",
            f"a role for organisation {organisation[:80]!r} needs a project: in all projects it is for everyone",
            "name the project: --project",
        )


def require_only_in(connection: Connection, name: str, project: str) -> None:
    """Refuse to revoke an operator with roles elsewhere, which only administrators of all projects may do."""
    rights = project_roles.rights(connection, name)
    if rights.everywhere is not None or rights.projects.keys() - {project}:
        raise ConflictError(
            "operator.shared",
            f"{name} has roles outside of project {project}",
            f"remove its role here: atoll operator role {name} none --project {project}",
        )


def require_another(connection: Connection, name: str, now: float) -> None:
    """Refuse a change that would leave the server without an administrator with a valid certificate."""
    standing = operators.administrators(connection, now=now)
    if standing == (name,):
        raise ConflictError(
            "operator.last", f"{name} is the only administrator", "make another operator an administrator first"
        )
