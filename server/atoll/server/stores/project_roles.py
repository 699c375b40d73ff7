"""Roles of operators in single projects; those in all projects are in ``operators``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from atoll.server.identity import OperatorRole, ProjectRole, Rights, Role
from atoll.server.stores import operators
from atoll.server.stores.row_conversion import fetch_all, select_all, to_row
from atoll.server.stores.schema import certificates, project_roles


@dataclass(frozen=True)
class ProjectGrant:
    """The role of an operator in a project, who gave it, and when (epoch seconds UTC)."""

    name: str
    project: str
    role: OperatorRole
    organisation: str
    granted_by: str
    granted_at: float

    @property
    def given(self) -> ProjectRole:
        """The permissions of the grant."""
        return ProjectRole(self.role, self.organisation)


def put(connection: Connection, grant: ProjectGrant) -> None:
    """Set an operator's role in a project, replacing any earlier one."""
    remove(connection, grant.name, grant.project)
    connection.execute(insert(project_roles).values(to_row(grant)))


def remove(connection: Connection, name: str, project: str) -> None:
    """Remove an operator's role in a project."""
    connection.execute(delete(project_roles).where(project_roles.c.name == name, project_roles.c.project == project))


def of(connection: Connection, name: str) -> Mapping[str, ProjectRole]:
    """The roles of an operator in single projects, by project."""
    query = select_all(ProjectGrant, project_roles).where(project_roles.c.name == name)
    return {grant.project: grant.given for grant in fetch_all(connection, ProjectGrant, query)}


def by_operator(connection: Connection) -> Mapping[str, Mapping[str, ProjectRole]]:
    """All roles in single projects, by operator and project."""
    found: dict[str, dict[str, ProjectRole]] = {}
    for grant in fetch_all(connection, ProjectGrant, select_all(ProjectGrant, project_roles)):
        found.setdefault(grant.name, {})[grant.project] = grant.given
    return found


def rights(connection: Connection, name: str) -> Rights:
    """The rights of an operator with a certificate."""
    everywhere, within = operators.get(connection, name), of(connection, name)
    return Rights(None if everywhere is None else everywhere.role, within)


def administrators(connection: Connection, project: str, *, now: float) -> tuple[str, ...]:
    """Names of a project's own administrators with a valid certificate, in order."""
    standing = (certificates.c.revoked_at.is_(None)) & (certificates.c.not_after > now)
    ours = (project_roles.c.project == project) & (project_roles.c.role == OperatorRole.ADMINISTRATOR)
    query = (
        select(project_roles.c.name)
        .join(certificates, certificates.c.subject == project_roles.c.name)
        .where(ours, project_roles.c.organisation == "", certificates.c.role == Role.OPERATOR, standing)
        .distinct()
        .order_by(project_roles.c.name)
    )
    return tuple(connection.execute(query).scalars())
