"""Roles of operators who have certificates; their certificates are in ``certificates``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from atoll.server.identity import OperatorRole, Role
from atoll.server.stores.row_conversion import fetch_one, select_all, to_row
from atoll.server.stores.schema import certificates, operators


@dataclass(frozen=True)
class Grant:
    """The role of an operator, who gave it, and when (epoch seconds UTC)."""

    name: str
    role: OperatorRole
    granted_by: str
    granted_at: float


def put(connection: Connection, grant: Grant) -> None:
    """Set an operator's role, replacing any earlier one."""
    changed = update(operators).where(operators.c.name == grant.name).values(to_row(grant))
    if connection.execute(changed).rowcount == 0:
        connection.execute(insert(operators).values(to_row(grant)))


def remove(connection: Connection, name: str) -> None:
    """Remove an operator's role."""
    connection.execute(delete(operators).where(operators.c.name == name))


def get(connection: Connection, name: str) -> Grant | None:
    """The role of an operator; None if it has none."""
    return fetch_one(connection, Grant, select_all(Grant, operators).where(operators.c.name == name))


def roles(connection: Connection) -> Mapping[str, OperatorRole]:
    """Roles by operator."""
    found = connection.execute(select(operators.c.name, operators.c.role))
    return {str(name): role for name, role in found}


def administrators(connection: Connection, *, now: float) -> tuple[str, ...]:
    """Names of the administrators with a valid certificate, in order."""
    standing = (certificates.c.revoked_at.is_(None)) & (certificates.c.not_after > now)
    query = (
        select(operators.c.name)
        .join(certificates, certificates.c.subject == operators.c.name)
        .where(operators.c.role == OperatorRole.ADMINISTRATOR, certificates.c.role == Role.OPERATOR, standing)
        .distinct()
        .order_by(operators.c.name)
    )
    return tuple(connection.execute(query).scalars())
