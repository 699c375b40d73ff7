"""Named operators: listing, adding and revoking them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Connection

from atoll.server.access.certificates import CertificateBook, check_operator_stands
from atoll.server.access.operator_file import OPERATOR_NAME, OperatorFile
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
    check_organisation,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node_pool import NodePool
from atoll.server.stores import Grant, ProjectGrant, Reader, certificates, operators, project_roles, projects
from atoll.server.stores.certificates import Certificate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operator:
    """One operator, derived from its certificates. Times are epoch seconds UTC.

    Attributes:
        name: as the audit log has it.
        rights: what it may do.
        issued_at: when the oldest certificate on record was issued.
        expires_at: when the last one ends.
        certificates: how many are in force.
        revoked_at: when it was shut out; None while a certificate is in force.
        revoked_reason: why.
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
        """The operator of these rights that holds these certificates, the oldest first."""
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
class Given:
    """A role for an operator; ``role`` None takes the one in the project away.

    ``project`` None: in all projects; ``organisation``, if not empty: only for what belongs to that one.
    """

    name: str
    role: OperatorRole | None
    project: str | None = None
    organisation: str = ""

    def __str__(self) -> str:
        """For the log."""
        where = "" if self.project is None else f" in project {self.project}"
        limited = f" for {self.organisation}" if self.organisation else ""
        return f"{'nothing' if self.role is None else self.role.words}{limited}{where}"


@dataclass(frozen=True)
class Revoked:
    """A revoked operator, and how many of its unused join tokens are void."""

    operator: Operator
    voided_tokens: int


class Operators:
    """The operators of one server.

    Args:
        authority: issues certificates.
        reader: the database's readers.
        clock: epoch seconds, UTC.
        book: the certificates, which it revokes.
        nodes: end calls in other processes.
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
        """A certificate (PEM) for an operator; one that makes another in its own name renews its credential.

        Args:
            name: of the operator.
            csr_pem: proves its key.
            lifetime_s: how long the certificate is good for.
            by: who asks.
            role: of a new operator (None: an operator); a renewal keeps the role.
            project: the only one in which a new operator has the role; None: in all.
            organisation: the only one in that project for which it has the role; empty: all.

        Raises:
            ForbiddenError: if the caller is no administrator and does not renew its own, or renews with another role.
            NameFormatError: for an impossible name.
            InvalidRequestError: for an impossible lifetime or certificate request, or an organisation without project.
            ConflictError: if another holds a certificate in that name.
            RevokedError: if the operator that asks has just been revoked.
        """
        check_operator(name)
        _require_project_of(organisation, project)
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
                _give_anew(connection, Given(name, grant, project, organisation), rights_now(connection, by), by, now)
            certificates.add(connection, issued.peer, issued_at=now)

        await self._book.change_role(name, work)
        log.info("credential made for operator %s by operator %s", name, by.name)
        return issued.pem

    async def set_role(self, given: Given, *, by: Caller) -> Operator:
        """Give an operator another role, in all projects or in one, from its next call on.

        Raises:
            InvalidRequestError: if its role in all projects is to be taken away, which would be a revocation, or if
                an organisation is given without a project.
            NotFoundError: if there is no such operator.
            ForbiddenError: if the caller is no administrator.
            ConflictError: if it is the server's own operator, or no administrator would be left.
        """
        now, name, role = self._clock(), given.name, given.role
        _require_project_of(given.organisation, given.project)
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
                _set_in_project(connection, given, by, now)
                return
            if role is not OperatorRole.ADMINISTRATOR:
                _require_another(connection, name, now)
            operators.put(connection, Grant(name, role, by.name, now))

        await self._book.change_role(name, work)
        log.info("operator %s is now %s, by operator %s", name, given, by.name)
        return await self._operator(name)

    async def listed(self) -> tuple[Operator, ...]:
        """All operators on record, by name; those whose certificates ended long ago are forgotten with them."""
        rows, roles, within = await self._reader.run(_rows_and_roles)
        now = self._clock()
        return tuple(
            Operator.of(name, Rights(roles.get(name), within.get(name, {})), list(found), now)
            for name, found in groupby(rows, lambda row: row.subject)
        )

    async def revoke(self, name: str, reason: str, *, by: Caller, project: str | None = None) -> Revoked:
        """Revoke an operator at once: all its certificates, its open calls, and its unused join tokens.

        With a ``project`` the caller may be an administrator of that one, if the operator has roles in no other.

        The server's own operator gets a new credential in the data directory: who has that is not locked out.

        Raises:
            NotFoundError: if there is no such operator.
            ForbiddenError: if the caller is no administrator.
            ConflictError: if no administrator would be left.
        """
        now = self._clock()

        def check(connection: Connection) -> None:
            _require_known(connection, name, by, now, project)
            if project is not None:
                _require_only_in(connection, name, project)
            if name != OPERATOR_NAME:  # which gets a new certificate below
                _require_another(connection, name, now)

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
    """The caller's role in a project, or (None) in all; of one with a single project in that one."""
    rights = caller.rights or Rights()
    if project is None and rights.everywhere is not None:
        return rights.everywhere
    own = rights.within(project) if project is not None else next(iter(rights.projects.values()), None)
    return None if own is None else own.role


def _give_anew(connection: Connection, given: Given, rights: Rights, by: Caller, now: float) -> None:
    """Give an operator that has no credential in force a role, in place of those that its name had before.

    Raises:
        ConflictError: if its name has roles elsewhere, and the caller is not an administrator of all projects.
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
        _set_in_project(connection, given, by, now)


def _set_in_project(connection: Connection, given: Given, by: Caller, now: float) -> None:
    """Give a role in one project, or take it away.

    Raises:
        RecordMissingError: if there is no such project.
        InvalidRequestError: if the last role of an operator is to be taken away, or limited to an organisation although
            it has one in all projects.
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


def _require_only_in(connection: Connection, name: str, project: str) -> None:
    """Refuse to revoke an operator with roles elsewhere: only administrators of all projects may."""
    rights = project_roles.rights(connection, name)
    if rights.everywhere is not None or rights.projects.keys() - {project}:
        raise ConflictError(
            "operator.shared",
            f"{name} has roles outside of project {project}",
            f"take its role here away: atoll operator role {name} none --project {project}",
        )


def _require_project_of(organisation: str, project: str | None) -> None:
    """Refuse a role for one organisation in all projects, which no role is."""
    if organisation and project is None:
        raise InvalidRequestError(
            "operator.role_limit",
            f"a role for organisation {organisation[:80]!r} needs a project: in all projects it is for everyone",
            "name the project: --project",
        )


def _missing(name: str) -> NotFoundError:
    return NotFoundError("operator.missing", f"no operator {name[:80]!r}", "see `atoll operator list`")


def _require_known(connection: Connection, name: str, by: Caller, now: float, project: str | None) -> None:
    """Refuse a change of an operator by a caller who is no administrator in force, or of one who is not on record.

    For an administrator of one project only those are on record who have a role in it.
    """
    check_operator_stands(connection, by.name, now)
    check_administrator(connection, by, now, project)
    known = bool(certificates.of_subject(connection, Role.OPERATOR, name))
    if known and rights_now(connection, by).everywhere is None:
        known = project in project_roles.of(connection, name)
    if not known:
        raise _missing(name)


def _require_another(connection: Connection, name: str, now: float) -> None:
    """Refuse what would leave the server without an administrator that has a certificate in force."""
    standing = operators.administrators(connection, now=now)
    if standing == (name,):
        raise ConflictError(
            "operator.last", f"{name} is the only administrator", "make another operator an administrator first"
        )
