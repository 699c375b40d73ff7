"""Lists, adds and revokes named operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Connection

from atoll.server.access.certificates import CertificateBook, check_operator_stands
from atoll.server.access.operator_file import OPERATOR_NAME, OperatorFile
from atoll.server.access.role_changes import (
    Given,
    give_anew,
    require_another,
    require_only_in,
    require_project_of,
    set_in_project,
)
from atoll.server.access.role_checks import check_administrator, rights_now, role_error
from atoll.server.errors import ConflictError, InvalidRequestError, NotFoundError, ServerError
from atoll.server.identity import (
    OPERATOR_LIFETIME_S,
    Authority,
    CertificateRequest,
    OperatorRole,
    ProjectRole,
    RevokedError,
    Rights,
    Role,
    check_operator,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node_pool import NodePool
from atoll.server.stores import Grant, Reader, certificates, operators, project_roles
from atoll.server.stores.certificates import Certificate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operator:
    """One operator, derived from its certificates. Times are epoch seconds UTC.

    Attributes:
        name: its name in the audit log.
        rights: its rights.
        issued_at: when the oldest certificate on record was issued.
        expires_at: when the last one expires.
        certificates: number of valid certificates.
        revoked_at: when it was revoked; None while a certificate is valid.
        revoked_reason: why it was revoked.
    """

    name: str
    rights: Rights
    issued_at: float
    expires_at: float
    certificates: int
    revoked_at: float | None
    revoked_reason: str

    @classmethod
    def of(cls, name: str, rights: Rights, rows: Sequence[Certificate], now: float) -> Operator:
        """The operator with these rights and certificates, the oldest first."""
        standing = [row for row in rows if row.revoked_at is None and row.not_after > now]
        return cls(
            name=name,
            rights=rights,
            issued_at=rows[0].issued_at,
            expires_at=max(row.not_after for row in standing or rows),
            certificates=len(standing),
            revoked_at=None if standing else rows[-1].revoked_at,
            revoked_reason="" if standing else rows[-1].revoked_reason,
        )


@dataclass(frozen=True)
class Revoked:
    """A revoked operator, and the number of its unused join tokens that became void."""

    operator: Operator
    voided_tokens: int


class Operators:
    """The operators of one server.

    Args:
        authority: issues certificates.
        reader: the database's readers.
        clock: epoch seconds, UTC.
        book: revokes certificates.
        nodes: ingest nodes, which end calls in other processes.
        file: the credential in the data directory; None without TLS.
    """

    def __init__(
        self,
        *,
        authority: Authority,
        reader: Reader,
        clock: Callable[[], float],
        book: CertificateBook,
        nodes: NodePool,
        file: OperatorFile | None,
    ) -> None:
        self._authority = authority
        self._reader = reader
        self._clock = clock
        self._book = book
        self._nodes = nodes
        self._file = file

    async def create(
        self,
        name: str,
        csr_pem: bytes,
        *,
        lifetime_s: float,
        by: Caller,
        role: OperatorRole | None = None,
        project: str | None = None,
        organisation: str = "",
    ) -> bytes:
        """Issue a certificate (PEM) to an operator; an operator that requests its own name renews its credential.

        Args:
            name: the operator's name.
            csr_pem: the request, which proves its key.
            lifetime_s: seconds for which the certificate is valid.
            by: the caller.
            role: role of a new operator, by default "operator"; a renewal keeps the role.
            project: the only project in which a new operator has the role; None for all.
            organisation: the only organisation in that project for which it has the role; empty for all.

        Raises:
            ForbiddenError: if the caller is not an administrator and does not renew its own credential, or renews it
                with another role.
            NameFormatError: for an invalid name.
            InvalidRequestError: for an invalid lifetime or certificate request, or an organisation without a project.
            ConflictError: if another operator holds a certificate in that name.
            RevokedError: if the calling operator has just been revoked.
        """
        check_operator(name)
        require_project_of(organisation, project)
        if not 0 < lifetime_s <= OPERATOR_LIFETIME_S:
            raise InvalidRequestError(
                "operator.lifetime",
                f"lifetime_s {lifetime_s}: must be above 0 and at most {OPERATOR_LIFETIME_S:.0f} (90 days)",
            )
        now, request = self._clock(), await asyncio.to_thread(CertificateRequest.parse, csr_pem)
        issued = await asyncio.to_thread(
            self._authority.certify_operator, request, name, now=now, lifetime_s=lifetime_s
        )

        def work(connection: Connection) -> None:
            check_operator_stands(connection, by.name, now)
            rows = certificates.of_subject(connection, Role.OPERATOR, name)
            standing = any(row.revoked_at is None and row.not_after > now for row in rows)
            own = by.name == name and standing
            if not own:
                check_administrator(connection, by, now, project)
            elif role is not None and role is not _role_in(by, project):
                others = operators.administrators(connection, now=now)
                raise role_error(name, _role_in(by, project), {OperatorRole.ADMINISTRATOR}, others)
            if by.name != name and standing:
                raise ConflictError(
                    "operator.exists",
                    f"operator {name} has a credential that is in force",
                    f"choose another name, revoke {name} first, or have {name} make the new one: that renews it",
                )
            if not own:
                grant = role or OperatorRole.OPERATOR
                give_anew(connection, Given(name, grant, project, organisation), rights_now(connection, by), by, now)
            certificates.add(connection, issued.peer, issued_at=now)

        await self._book.change_role(name, work)
        log.info("credential made for operator %s by operator %s", name, by.name)
        return issued.pem

    async def set_role(self, given: Given, *, by: Caller) -> Operator:
        """Change an operator's role, in all projects or in one, with effect from its next call.

        Raises:
            InvalidRequestError: if the role in all projects is to be removed, which needs a revocation, or an
                organisation is given without a project.
            NotFoundError: if there is no such operator.
            ForbiddenError: if the caller is not an administrator.
            ConflictError: if it is the server's own operator, or no administrator would remain.
        """
        now, name, role = self._clock(), given.name, given.role
        require_project_of(given.organisation, given.project)
        if role is None and given.project is None:
            raise InvalidRequestError(
                "operator.role_name",
                f"no role for {name[:80]!r} in all projects",
                "name a role; or revoke the operator: atoll operator revoke",
            )

        def work(connection: Connection) -> None:
            _require_known(connection, name, by, now, given.project)
            if name == OPERATOR_NAME and (given.project is not None or role is not OperatorRole.ADMINISTRATOR):
                raise ConflictError(
                    "operator.own",
                    f"{name} is the server's own operator, which is always an administrator",
                    "give operators credentials in their own names, and keep operator.json on the server's machine",
                )
            if given.project is not None or role is None:
                set_in_project(connection, given, by, now)
                return
            if role is not OperatorRole.ADMINISTRATOR:
                require_another(connection, name, now)
            operators.put(connection, Grant(name, role, by.name, now))

        await self._book.change_role(name, work)
        log.info("operator %s is now %s, by operator %s", name, given, by.name)
        return await self._operator(name)

    async def listed(self) -> tuple[Operator, ...]:
        """All recorded operators, by name; an operator is forgotten with its last expired certificate."""
        rows, roles, within = await self._reader.run(_rows_and_roles)
        now = self._clock()
        return tuple(
            Operator.of(name, Rights(roles.get(name), within.get(name, {})), list(found), now)
            for name, found in groupby(rows, lambda row: row.subject)
        )

    async def revoke(self, name: str, reason: str, *, by: Caller, project: str | None = None) -> Revoked:
        """Revoke an operator at once: all its certificates, its open calls, and its unused join tokens.

        With a ``project``, the caller may be an administrator of that project, if the operator has roles in no other.

        The server's own operator gets a new credential in the data directory, so that operators with access to it are
        not locked out.

        Raises:
            NotFoundError: if there is no such operator.
            ForbiddenError: if the caller is not an administrator.
            ConflictError: if no administrator would remain.
        """
        now = self._clock()

        def check(connection: Connection) -> None:
            _require_known(connection, name, by, now, project)
            if project is not None:
                require_only_in(connection, name, project)
            if name != OPERATOR_NAME:  # it gets a new certificate below
                require_another(connection, name, now)

        voided = await self._book.revoke_operator(name, reason, check)
        log.info(
            "operator %s revoked by operator %s: %s; %d unused join tokens are void", name, by.name, reason, voided
        )
        await self._nodes.end_calls(Caller(Role.OPERATOR, name), RevokedError.of(name, reason))
        revoked = await self._operator(name)
        await self._replace_file()
        return Revoked(revoked, voided)

    async def _operator(self, name: str) -> Operator:
        def work(connection: Connection) -> Operator:
            rows = certificates.of_subject(connection, Role.OPERATOR, name)
            return Operator.of(name, project_roles.rights(connection, name), rows[::-1], self._clock())

        return await self._reader.run(work)

    async def _replace_file(self) -> None:
        if self._file is None:
            return
        try:
            await self._file.ensure()
        except ServerError as error:
            log.warning("the operator's credential could not be replaced, it is tried again later: %s", error)


def _rows_and_roles(
    connection: Connection,
) -> tuple[tuple[Certificate, ...], Mapping[str, OperatorRole], Mapping[str, Mapping[str, ProjectRole]]]:
    return certificates.of_operators(connection), operators.roles(connection), project_roles.by_operator(connection)


def _role_in(caller: Caller, project: str | None) -> OperatorRole | None:
    """The caller's role in a project, or (None) in all projects; a caller with a single project has its role there."""
    rights = caller.rights or Rights()
    if project is None and rights.everywhere is not None:
        return rights.everywhere
    own = rights.within(project) if project is not None else next(iter(rights.projects.values()), None)
    return None if own is None else own.role


def _missing(name: str) -> NotFoundError:
    return NotFoundError("operator.missing", f"no operator {name[:80]!r}", "see `atoll operator list`")


def _require_known(connection: Connection, name: str, by: Caller, now: float, project: str | None) -> None:
    """Refuse a change by a caller who is not a valid administrator, or of an operator who is not recorded.

    For an administrator of one project, only operators with a role in it count as recorded.
    """
    check_operator_stands(connection, by.name, now)
    check_administrator(connection, by, now, project)
    known = bool(certificates.of_subject(connection, Role.OPERATOR, name))
    if known and rights_now(connection, by).everywhere is None:
        known = project in project_roles.of(connection, name)
    if not known:
        raise _missing(name)
