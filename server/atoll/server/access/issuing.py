"""Issues certificates to participants and aggregators: for a join token, and to replace an older certificate."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from sqlalchemy import Connection

from atoll.server.access.certificates import RE_ENROL, CertificateBook
from atoll.server.access.quotas import check_participants
from atoll.server.config.limits import DEFAULT_LIMITS
from atoll.server.errors import ForbiddenError, LimitExceededError, UnauthenticatedError
from atoll.server.identity import (
    Authority,
    CertificateRequest,
    IssuedCertificate,
    ParticipantKind,
    PeerError,
    Role,
    SupersededError,
    TokenRecord,
    TokenUsedError,
    check_kind,
    new_participant_id,
    verify,
)
from atoll.server.stores import Reader, Writer, certificates, participants, tokens
from atoll.wire.renewal import renewal_proof
from atoll.wire.status import Recovery

log = logging.getLogger(__name__)


class CertificateIssuer:
    """Issues certificates to participants and aggregators.

    A participant's certificate is renewed until a newer one of the same participant has been used. A client that lost
    the answer to a renewal can ask again with its old key, while a key that was stolen before the renewal is useless.

    Args:
        book: identifies the holders of certificates.
        authority: issues certificates.
        writer: the database's writer.
        reader: the database's readers.
        clock: epoch seconds, UTC.
        lifetime_s: seconds for which a participant's certificate is valid.
        most_per_lifetime: maximum number of certificates for one participant within ``lifetime_s``.
        grace_s: seconds after its expiry in which a participant's certificate may still be renewed.
    """

    def __init__(
        self,
        book: CertificateBook,
        authority: Authority,
        writer: Writer,
        reader: Reader,
        clock: Callable[[], float],
        *,
        lifetime_s: float,
        most_per_lifetime: int = DEFAULT_LIMITS.certificates_per_lifetime,
        grace_s: float = 0.0,
    ) -> None:
        self._book = book
        self._authority = authority
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._most_per_lifetime = most_per_lifetime
        self._grace_s = grace_s

    @property
    def ca_certificate_pem(self) -> bytes:
        """The authority's certificate."""
        return self._authority.certificate_pem

    async def enrol(
        self, token_id: str, secret: str, csr_pem: bytes, *, aggregator: bool = False
    ) -> tuple[participants.Participant, bytes]:
        """Spend a join token for a certificate; ``aggregator`` if the caller is an aggregator.

        Since the answer may be lost, the same key may ask again until the token expires or the participant has used a
        certificate.

        Raises:
            TokenError: if the token does not admit the caller.
            CertificateRequestError: if the request is not acceptable.
            ForbiddenError: if the participant that the token was spent for was revoked.
            ConflictError: if its project is closed.
            LimitExceededError: if that participant has been issued too many certificates, or its project's quota of
                participants is used up.
        """
        request = await asyncio.to_thread(CertificateRequest.parse, csr_pem)
        now = self._clock()

        def check(connection: Connection) -> TokenRecord:
            record = verify(tokens.get(connection, token_id), secret, now=now, key=request.key)
            check_kind(record, aggregator=aggregator)
            if record.used_by is not None and _has_come(connection, record.used_by):
                raise TokenUsedError(f"join token {token_id} has been used, and so has the certificate issued for it")
            return record

        # Anyone can call this, so an invalid token must cost only a read, not a place in the writer's queue.
        token = await self._reader.run(check)
        name = token.used_by or new_participant_id()
        issued = await self._sign(request, name, now, Role.of_kind(token.kind))

        def work(connection: Connection) -> participants.Participant | None:
            record = check(connection)
            admitted = tokens.spend(connection, token_id, participant=name, key=request.key, now=now)
            if admitted != name:  # the same key asked twice concurrently, and the other call was first
                return None
            if participants.get(connection, name) is None:
                more = int(record.kind is not ParticipantKind.AGGREGATOR)
                check_participants(connection, record.project, more, now=now, promised=False, shows_counts=False)
                fresh = participants.Participant(
                    name,
                    record.organisation,
                    record.kind,
                    enrolled_at=now,
                    token_id=token_id,
                    hosts=record.hosts,
                    through=record.through,
                    project=record.project,
                )
                participants.add(connection, fresh)
            return self._record(connection, issued, now, proved_at=math.inf)

        participant = await self._writer.run(work)
        if participant is None:
            return await self.enrol(token_id, secret, csr_pem, aggregator=aggregator)
        log.info(
            "participant %s enrolled: project %s, organisation %s, kind %s, token %s",
            participant.id,
            participant.project,
            participant.organisation,
            participant.kind,
            participant.token_id,
            extra={"participant": participant.id},
        )
        return participant, issued.pem

    async def renew(self, certificate_pem: bytes, csr_pem: bytes) -> bytes:
        """Issue a new certificate to a participant that has proved its old one, which is valid.

        Raises:
            CertificateRequestError: if the request is not acceptable.
            SupersededError: if the participant has used a newer certificate.
            UnauthenticatedError: if it is unknown.
            ForbiddenError: if it was revoked.
            LimitExceededError: if it has been issued too many certificates.
        """
        proved = await self._book.find(certificate_pem)
        return await self._renew(proved.subject, proved.issued_at, csr_pem, proved.role)

    async def renew_expired(self, certificate_pem: bytes, csr_pem: bytes, signature: bytes) -> bytes:
        """Issue a new certificate to a participant that was away when its old one expired.

        Args:
            certificate_pem: the old certificate.
            csr_pem: the request for the new certificate.
            signature: over ``renewal_proof(csr_pem)``, by the old key.

        Raises:
            PeerError: if the certificate does not belong to a participant of this federation, or its key did not sign.
            UnauthenticatedError: if it expired longer than ``grace_s`` ago. Other errors as for ``renew``.
        """
        peer = await asyncio.to_thread(self._authority.verify_proof, certificate_pem, renewal_proof(csr_pem), signature)
        if peer.role is Role.OPERATOR:
            raise PeerError(f"the certificate of {peer.name} is an operator's: only participants' are renewed here")
        if peer.not_after + self._grace_s <= self._clock():
            message = f"the certificate of {peer.name} expired longer than {self._grace_s:.0f} s ago"
            raise self._book.refused(peer.name, UnauthenticatedError("certificate.expired", message, RE_ENROL))
        known = await self._reader.run(lambda connection: certificates.get(connection, peer.fingerprint))
        issued_at = peer.issued_at if known is None else known.issued_at
        return await self._renew(peer.name, issued_at, csr_pem, peer.role)

    async def _renew(self, participant: str, proved_at: float, csr_pem: bytes, role: Role) -> bytes:
        """Issue a certificate to replace one issued at ``proved_at``. Raises what ``renew`` raises."""
        request, now = await asyncio.to_thread(CertificateRequest.parse, csr_pem), self._clock()
        try:  # before signing, so that a flood of renewals costs only reads
            await self._reader.run(self._check_admissible, participant, now, proved_at)
        except UnauthenticatedError as error:
            self._book.refused(participant, error)
            raise
        issued = await self._sign(request, participant, now, role)
        await self._writer.run(self._record, issued, now, proved_at)
        log.info("certificate of %s renewed", participant, extra={"participant": participant})
        return issued.pem

    async def _sign(self, request: CertificateRequest, participant: str, now: float, role: Role) -> IssuedCertificate:
        """Sign a certificate, which is not recorded yet, in a thread other than the event loop's and the writer's."""
        return await asyncio.to_thread(
            self._authority.issue_participant, request, participant, now=now, lifetime_s=self._lifetime_s, role=role
        )

    def _record(
        self, connection: Connection, issued: IssuedCertificate, now: float, proved_at: float
    ) -> participants.Participant:
        """Record a certificate before it is sent. Raises what ``_check_admissible`` raises."""
        name = issued.peer.name
        participant = self._check_admissible(connection, name, now, proved_at)
        after_the_last = math.nextafter(certificates.last_issued_at(connection, name), math.inf)
        certificates.add(connection, issued.peer, issued_at=max(now, after_the_last))
        return participant

    def _check_admissible(
        self, connection: Connection, name: str, now: float, proved_at: float
    ) -> participants.Participant:
        """The participant of this name, if it may be issued another certificate.

        Args:
            connection: to the database.
            name: a participant id.
            now: epoch seconds UTC.
            proved_at: time of issue of the certificate whose key the caller holds; infinite for a join token.

        Raises:
            UnauthenticatedError: if it is unknown.
            SupersededError: if it has used a newer certificate.
            ForbiddenError: if it was revoked.
            LimitExceededError: if it has recently been issued too many.
        """
        participant = participants.get(connection, name)
        if participant is None:
            raise UnauthenticatedError("participant.unknown", f"no participant {name!r}", RE_ENROL)
        if participant.revoked_at is not None:
            raise ForbiddenError(
                "participant.revoked", f"participant {name} was revoked", RE_ENROL, recovery=Recovery.ENROL
            )
        if certificates.newer_was_used(connection, name, issued_at=proved_at):
            raise SupersededError(name)
        issued = certificates.issued_since(connection, participant.role, name, since=now - self._lifetime_s)
        if len(issued) >= self._most_per_lifetime:
            raise LimitExceededError(
                "certificate.rate",
                f"participant {name} has been given {len(issued)} certificates within {self._lifetime_s:.0f} s",
                "use the newest one, and renew it at two thirds of its lifetime",
                retry_after_s=max(1.0, issued[-self._most_per_lifetime] + self._lifetime_s - now),
            )
        return participant


def _has_come(connection: Connection, name: str) -> bool:
    """Whether a participant has ever used a certificate; ``last_seen_at`` outlives the certificates' rows."""
    participant = participants.get(connection, name)
    seen = participant is not None and participant.last_seen_at is not None
    return seen or certificates.newer_was_used(connection, name, issued_at=0.0)
