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
from atoll.server.access.role_checks import check_administrator, role_error
from atoll.server.errors import ConflictError, InvalidRequestError, NotFoundError, ServerError
from atoll.server.identity import (
    OPERATOR_LIFETIME_S,
    Authority,
    CertificateRequest,
    OperatorRole,
    RevokedError,
    Role,
    check_operator,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node_pool import NodePool
from atoll.server.stores import Grant, Reader, certificates, operators
from atoll.server.stores.certificates import Certificate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operator:
    """One operator, derived from its certificates. Times are epoch seconds UTC.

    Attributes:
        name: as the audit log has it.
        role: what it may do.
        issued_at: when the oldest certificate on record was issued.
        expires_at: when the last one ends.
        certificates: how many are in force.
        revoked_at: when it was shut out; None while a certificate is in force.
        revoked_reason: why.
    """

    name: str
    role: OperatorRole
    issued_at: float
    expires_at: float
    certificates: int
    revoked_at: float | None
    revoked_reason: str

    @classmethod
    def of(cls, name: str, role: OperatorRole, rows: Sequence[Certificate], now: float) -> Operator:
        """The operator of this role that holds these certificates, the oldest first."""
        standing = [row for row in rows if row.revoked_at is None and row.not_after > now]
        return cls(
            name=name,
            role=role,
            issued_at=rows[0].issued_at,
            expires_at=max(row.not_after for row in standing or rows),
            certificates=len(standing),
            revoked_at=None if standing else rows[-1].revoked_at,
            revoked_reason="" if standing else rows[-1].revoked_reason,
        )


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
        self, name: str, csr_pem: bytes, *, lifetime_s: float, by: Caller, role: OperatorRole | None = None
    ) -> bytes:
        """A certificate (PEM) for an operator; one that makes another in its own name renews its credential.

        Args:
            name: of the operator.
            csr_pem: proves its key.
            lifetime_s: how long the certificate is good for.
            by: who asks.
            role: of a new operator (None: an operator); a renewal keeps the role.

        Raises:
            ForbiddenError: if the caller is no administrator and does not renew its own, or renews with another role.
            NameFormatError: for an impossible name.
            InvalidRequestError: for an impossible lifetime or certificate request.
            ConflictError: if another holds a certificate in that name.
            RevokedError: if the operator that asks has just been revoked.
        """
        check_operator(name)
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
            if by.name != name or not standing:
                check_administrator(connection, by, now)
                operators.put(connection, Grant(name, role or OperatorRole.OPERATOR, by.name, now))
            elif role not in (None, by.operator_role):
                raise role_error(by, {OperatorRole.ADMINISTRATOR}, operators.administrators(connection, now=now))
            if by.name != name and standing:
                raise ConflictError(
                    "operator.exists",
                    f"operator {name} has a credential that is in force",
                    f"choose another name, revoke {name} first, or have {name} make the new one: that renews it",
                )
            certificates.add(connection, issued.peer, issued_at=now)

        await self._book.change_role(name, work)
        log.info("credential made for operator %s by operator %s", name, by.name)
        return issued.pem

    async def set_role(self, name: str, role: OperatorRole, *, by: Caller) -> Operator:
        """Give an operator another role, from its next call on.

        Raises:
            NotFoundError: if there is no such operator.
            ForbiddenError: if the caller is no administrator.
            ConflictError: if it is the server's own operator, or no administrator would be left.
        """
        now = self._clock()

        def work(connection: Connection) -> None:
            _require_known(connection, name, by, now)
            if name == OPERATOR_NAME and role is not OperatorRole.ADMINISTRATOR:
                raise ConflictError(
                    "operator.own",
                    f"{name} is the server's own operator, which is always an administrator",
                    "give operators credentials in their own names, and keep operator.json on the server's machine",
                )
            if role is not OperatorRole.ADMINISTRATOR:
                _require_another(connection, name, now)
            operators.put(connection, Grant(name, role, by.name, now))

        await self._book.change_role(name, work)
        log.info("operator %s is now %s, by operator %s", name, role.words, by.name)
        return await self._operator(name)

    async def listed(self) -> tuple[Operator, ...]:
        """All operators on record, by name; those whose certificates ended long ago are forgotten with them."""
        rows, roles = await self._reader.run(_rows_and_roles)
        now = self._clock()
        return tuple(
            Operator.of(name, roles.get(name, OperatorRole.VIEWER), list(found), now)
            for name, found in groupby(rows, lambda row: row.subject)
        )

    async def revoke(self, name: str, reason: str, *, by: Caller) -> Revoked:
        """Revoke an operator at once: all its certificates, its open calls, and its unused join tokens.

        The server's own operator gets a new credential in the data directory: who has that is not locked out.

        Raises:
            NotFoundError: if there is no such operator.
            ForbiddenError: if the caller is no administrator.
            ConflictError: if no administrator would be left.
        """
        now = self._clock()

        def check(connection: Connection) -> None:
            _require_known(connection, name, by, now)
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
            rows, grant = certificates.of_subject(connection, Role.OPERATOR, name), operators.get(connection, name)
            role = OperatorRole.VIEWER if grant is None else grant.role
            return Operator.of(name, role, rows[::-1], self._clock())

        return await self._reader.run(work)

    async def _replace_file(self) -> None:
        if self._file is None:
            return
        try:
            await self._file.ensure()
        except ServerError as error:
            log.warning("the operator's credential could not be replaced, it is tried again later: %s", error)


def _rows_and_roles(connection: Connection) -> tuple[tuple[Certificate, ...], Mapping[str, OperatorRole]]:
    return certificates.of_operators(connection), operators.roles(connection)


def _missing(name: str) -> NotFoundError:
    return NotFoundError("operator.missing", f"no operator {name[:80]!r}", "see `atoll operator list`")


def _require_known(connection: Connection, name: str, by: Caller, now: float) -> None:
    """Refuse a change of an operator by a caller who is no administrator in force, or of one who is not on record."""
    check_operator_stands(connection, by.name, now)
    check_administrator(connection, by, now)
    if not certificates.of_subject(connection, Role.OPERATOR, name):
        raise _missing(name)


def _require_another(connection: Connection, name: str, now: float) -> None:
    """Refuse what would leave the server without an administrator that has a certificate in force."""
    standing = operators.administrators(connection, now=now)
    if standing == (name,):
        raise ConflictError(
            "operator.last", f"{name} is the only administrator", "make another operator an administrator first"
        )
