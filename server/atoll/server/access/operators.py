"""Named operators: listing, adding and revoking them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy import Connection

from atoll.server.access.certificates import CertificateBook, check_operator_stands
from atoll.server.access.operator_file import OperatorFile
from atoll.server.errors import ConflictError, InvalidRequestError, NotFoundError, ServerError
from atoll.server.identity import (
    OPERATOR_LIFETIME_S,
    Authority,
    CertificateRequest,
    RevokedError,
    Role,
    check_operator,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.ingest.node_pool import NodePool
from atoll.server.stores import Reader, Writer, certificates
from atoll.server.stores.certificates import Certificate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Operator:
    """One operator, derived from its certificates. Times are epoch seconds UTC.

    Attributes:
        name: as the audit log has it.
        issued_at: when the oldest certificate on record was issued.
        expires_at: when the last one ends.
        certificates: how many are in force.
        revoked_at: when it was shut out; None while a certificate is in force.
        revoked_reason: why.
    """

    name: str
    issued_at: float
    expires_at: float
    certificates: int
    revoked_at: float | None
    revoked_reason: str

    @classmethod
    def of(cls, name: str, rows: Sequence[Certificate], now: float) -> Operator:
        """The operator that holds these certificates, the oldest first."""
        standing = [row for row in rows if row.revoked_at is None and row.not_after > now]
        return cls(
            name=name,
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
        writer: the database's writer.
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
        writer: Writer,
        reader: Reader,
        clock: Callable[[], float],
        book: CertificateBook,
        nodes: NodePool,
        file: OperatorFile | None,
    ) -> None:
        self._authority = authority
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._book = book
        self._nodes = nodes
        self._file = file

    async def create(self, name: str, csr_pem: bytes, *, lifetime_s: float, by: str) -> bytes:
        """A certificate (PEM) for an operator; one that makes another in its own name renews its credential.

        Raises:
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
            check_operator_stands(connection, by, now)
            rows = certificates.of_subject(connection, Role.OPERATOR, name)
            if by != name and any(row.revoked_at is None and row.not_after > now for row in rows):
                raise ConflictError(
                    "operator.exists",
                    f"operator {name} has a credential that is in force",
                    f"choose another name, revoke {name} first, or have {name} make the new one: that renews it",
                )
            certificates.add(connection, issued.peer, issued_at=now)

        await self._writer.run(work)
        log.info("credential made for operator %s by operator %s", name, by)
        return issued.pem

    async def listed(self) -> tuple[Operator, ...]:
        """All operators on record, by name; those whose certificates ended long ago are forgotten with them."""
        rows, now = await self._reader.run(certificates.of_operators), self._clock()
        return tuple(Operator.of(name, list(found), now) for name, found in groupby(rows, lambda row: row.subject))

    async def revoke(self, name: str, reason: str, *, by: str) -> Revoked:
        """Revoke an operator at once: all its certificates, its open calls, and its unused join tokens.

        The server's own operator gets a new credential in the data directory: who has that is not locked out.

        Raises:
            NotFoundError: if there is no such operator.
        """
        voided = await self._book.revoke_operator(name, reason)
        rows = await self._reader.run(lambda connection: certificates.of_subject(connection, Role.OPERATOR, name))
        if not rows:
            raise NotFoundError("operator.missing", f"no operator {name[:80]!r}", "see `atoll operator list`")
        log.info("operator %s revoked by operator %s: %s; %d unused join tokens are void", name, by, reason, voided)
        await self._nodes.end_calls(Caller(Role.OPERATOR, name), RevokedError.of(name, reason))
        await self._replace_file()
        return Revoked(Operator.of(name, rows[::-1], self._clock()), voided)

    async def _replace_file(self) -> None:
        if self._file is None:
            return
        try:
            await self._file.ensure()
        except ServerError as error:
            log.warning("the operator's credential could not be replaced, it is tried again later: %s", error)
