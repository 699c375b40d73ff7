"""Refusals of requests that an operator's role does not allow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from atoll.server.access.oidc import PREFIX
from atoll.server.errors import ForbiddenError
from atoll.server.identity import OperatorRole, Rights
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.stores import operators, project_roles

MAY_READ_MODELS = frozenset({OperatorRole.OPERATOR, OperatorRole.ADMINISTRATOR})
_SHOWN = 3


def role_error(
    name: str,
    own: OperatorRole | None,
    needed: Collection[OperatorRole],
    administrators: Sequence[str],
    project: str | None = None,
) -> ForbiddenError:
    """The refusal, which says which roles suffice and who can grant one.

    Args:
        name: the operator's name.
        own: its role; None if it has none.
        needed: the roles that suffice.
        administrators: names of operators who can grant one.
        project: the project in which the role is needed; None for the whole server.
    """
    may = " or ".join(role.words for role in OperatorRole if role in needed)
    least = next(role for role in OperatorRole if role in needed)
    named = f" ({', '.join(administrators[:_SHOWN])})" if administrators else ""
    where = "" if project is None else f" --project {project}"
    grant = f"ask an administrator{named} for it: atoll operator role {name} {least.value.replace('_', '-')}{where}"
    if name.startswith(PREFIX):
        grant = "the provider that you sign in through gives roles: ask the administrators there"
    within = "" if project is None else f" in project {project}"
    has = "no role" if own is None else f"the role {own.words}"
    return ForbiddenError("operator.role", f"this needs the role {may}{within}; {name} has {has}", grant)


def organisation_error(name: str, organisation: str, project: str) -> ForbiddenError:
    """The refusal of an operator whose role is for one organisation."""
    return ForbiddenError(
        "operator.organisation",
        f"the role of {name} in project {project} is for the participants and join tokens of {organisation} only",
        "ask an administrator of the project to do it",
    )


def rights_now(connection: Connection, caller: Caller) -> Rights:
    """A caller's rights, within a transaction; a caller without any row is trusted (``--insecure``)."""
    everywhere, within = operators.get(connection, caller.name), project_roles.of(connection, caller.name)
    if everywhere is None and not within:
        return caller.rights or Rights()
    return Rights(None if everywhere is None else everywhere.role, within)


def check_administrator(connection: Connection, caller: Caller, now: float, project: str | None = None) -> None:
    """Check, within a transaction, that the caller is still an administrator.

    Args:
        connection: to the database.
        caller: the caller's name.
        now: epoch seconds, UTC.
        project: the project whose administrators suffice; None for administrators of all projects only.

    Raises:
        ForbiddenError: if it is not.
    """
    rights = rights_now(connection, caller)
    needed = {OperatorRole.ADMINISTRATOR}
    if project is None:
        if rights.everywhere is not OperatorRole.ADMINISTRATOR:
            raise role_error(caller.name, rights.everywhere, needed, operators.administrators(connection, now=now))
        return
    own = rights.within(project)
    if own is None or own.role is not OperatorRole.ADMINISTRATOR or own.organisation:
        standing = project_roles.administrators(connection, project, now=now)
        raise role_error(caller.name, None if own is None else own.role, needed, standing, project)
