"""Refusals of operators whose role does not allow what they ask."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from atoll.server.access.oidc import PREFIX
from atoll.server.errors import ForbiddenError
from atoll.server.identity import OperatorRole
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.stores import operators

MAY_READ_MODELS = frozenset({OperatorRole.OPERATOR, OperatorRole.ADMINISTRATOR})
_SHOWN = 3


def role_error(caller: Caller, needed: Collection[OperatorRole], administrators: Sequence[str]) -> ForbiddenError:
    """The refusal: which roles may, and who can grant one of them."""
    may = " or ".join(role.words for role in OperatorRole if role in needed)
    own = "no role" if caller.operator_role is None else caller.operator_role.words
    least = next(role for role in OperatorRole if role in needed)
    named = f" ({', '.join(administrators[:_SHOWN])})" if administrators else ""
    grant = f"ask an administrator{named} for it: atoll operator role {caller.name} {least.value.replace('_', '-')}"
    if caller.name.startswith(PREFIX):
        grant = "the provider that you sign in through gives roles: ask the administrators there"
    return ForbiddenError(
        "operator.role",
        f"this needs the role {may}; {caller.name} has {'' if caller.operator_role is None else 'the role '}{own}",
        grant,
    )


def check_administrator(connection: Connection, caller: Caller, now: float) -> None:
    """Refuse, within a transaction, what only administrators may, also one that is no longer an administrator.

    A caller without a row was believed on its word (``--insecure``).

    Raises:
        ForbiddenError: if it is none.
    """
    grant = operators.get(connection, caller.name)
    role = caller.operator_role if grant is None else grant.role
    if role is not OperatorRole.ADMINISTRATOR:
        standing = operators.administrators(connection, now=now)
        raise role_error(caller, {OperatorRole.ADMINISTRATOR}, standing)
