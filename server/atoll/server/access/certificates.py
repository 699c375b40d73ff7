"""Identifies callers by their certificates; issues, renews and revokes certificates."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from atoll.server.access.aggregator_names import check_names
from atoll.server.access.quotas import check_participants
from atoll.server.config.limits import DEFAULT_LIMITS
from atoll.server.errors import ForbiddenError, LimitExceededError, UnauthenticatedError
from atoll.server.identity import (
    UNBOUND,
    Authority,
    Bound,
    CertificateRequest,
    IssuedCertificate,
    ParticipantKind,
    Peer,
    PeerError,
    RevokedError,
    Rights,
    Role,
    SupersededError,
    TokenRecord,
    TokenUsedError,
    check_kind,
    mint,
    new_participant_id,
    verify,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.stores import Reader, Writer, certificates, participants, project_roles, tokens
from atoll.server.telemetry.refusal_log import RefusalLog
from atoll.wire.join_token import JoinToken
from atoll.wire.renewal import renewal_proof
from atoll.wire.status import Recovery

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_CACHED = 16_384
_RE_ENROL = "enrol again with a new join token"


class CertificateBook:
    """Identifies the holders of certificates, from a cache where possible.

    Only this process revokes, so its cache is authoritative.

    A participant's certificate is renewed until a newer one of the same participant has been used. A client that lost
    the answer to a renewal can ask again with its old key, while a key that was stolen before the renewal is useless.

    Args:
        authority: issues certificates.
        writer: the database's writer.
        reader: the database's readers.
        clock: epoch seconds, UTC.
        lifetime_s: seconds for which a participant's certificate is valid.
        restored_at: when the database was restored from a backup, which lacks certificates renewed since; 0 if it was
            not.
        most_per_lifetime: maximum number of certificates for one participant within ``lifetime_s``.
        grace_s: seconds after its expiry in which a participant's certificate may still be renewed.
    """

    def __init__(
        self,
        authority: Authority,
        writer: Writer,
        reader: Reader,
        clock: Callable[[], float],
        lifetime_s: float,
        restored_at: float = 0.0,
        most_per_lifetime: int = DEFAULT_LIMITS.certificates_per_lifetime,
        grace_s: float = 0.0,
    ) -> None:
        self._authority = authority
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._restored_at = restored_at
        self._most_per_lifetime = most_per_lifetime
        self.grace_s = grace_s
        self._known: OrderedDict[bytes, certificates.Certificate] = OrderedDict()
        self._newest: OrderedDict[str, float] = OrderedDict()
        self._rights: OrderedDict[str, Rights] = OrderedDict()
        self._revocations = 0
        self._shut_out: set[str] = set()
        self._listeners: list[Callable[[Caller, RevokedError], None]] = []
        self._refusals = RefusalLog(log)

    @property
    def ca_certificate_pem(self) -> bytes:
        """The authority's certificate."""
        return self._authority.certificate_pem

    def listen(self, revoked: Callable[[Caller, RevokedError], None]) -> None:
        """Call ``revoked`` with each revoked caller as soon as its revocation is durable."""
        self._listeners.append(revoked)

    def check_standing(self, participant: str) -> None:
        """Refuse a participant that was revoked while this process runs, even if its call was already admitted.

        Raises:
            RevokedError: if it was revoked.
        """
        if participant in self._shut_out:
            raise RevokedError.of(participant, "")

    async def identify(self, certificate_pem: bytes) -> Caller:
        """The holder of this certificate.

        Raises:
            PeerError, UnauthenticatedError: if it was not issued here, has expired or was revoked.
        """
        found = await self._certificate(certificate_pem)
        if found.revoked_at is not None:
            raise self._refused(found.subject, RevokedError.of(found.subject, found.revoked_reason))
        if found.not_after <= self._clock():
            message = f"the certificate of {found.subject} expired"
            raise self._refused(found.subject, UnauthenticatedError("certificate.expired", message, _RE_ENROL))
        if found.role is Role.SERVER:
            return Caller(found.role, found.subject)
        if found.role is not Role.OPERATOR:
            newest = max(found.not_after, self._newest.get(found.subject, 0.0))
            _remember(self._newest, found.subject, newest)
            return Caller(found.role, found.subject)
        return Caller(found.role, found.subject, await self.rights(found.subject))

    async def rights(self, name: str) -> Rights:
        """The rights of an operator with a certificate."""
        known = self._rights.get(name)
        while known is None:
            changes = self._revocations
            found = await self._reader.run(project_roles.rights, name)
            if changes == self._revocations:  # otherwise the read may be older than the change
                known = found
                _remember(self._rights, name, known)
        return known

    async def change_role(self, name: str, work: Callable[[Connection], None]) -> None:
        """Run a transaction that may change an operator's role, with effect from then on.

        Raises:
            Exception: what ``work`` or the writer raises.
        """

        def forget(_: None) -> None:
            self._revocations += 1
            self._rights.pop(name, None)

        await self._recorded(work, forget)

    def remaining_s(self, participant: str) -> float:
        """Seconds until the participant's newest certificate seen here expires; negative if unknown."""
        not_after = self._newest.get(participant)
        return -1.0 if not_after is None else max(0.0, not_after - self._clock())

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
                raise TokenUsedError(f"join token {token_id} has been used, and so has the certificate that it brought")
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
        proved = await self._certificate(certificate_pem)
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
        if peer.not_after + self.grace_s <= self._clock():
            message = f"the certificate of {peer.name} expired longer than {self.grace_s:.0f} s ago"
            raise self._refused(peer.name, UnauthenticatedError("certificate.expired", message, _RE_ENROL))
        known = await self._reader.run(lambda connection: certificates.get(connection, peer.fingerprint))
        issued_at = peer.issued_at if known is None else known.issued_at
        return await self._renew(peer.name, issued_at, csr_pem, peer.role)

    async def revoke(self, participant: str, reason: str) -> participants.Participant:
        """Revoke a participant at once and permanently.

        Raises:
            RecordMissingError: if there is no such participant.
        """
        now = self._clock()

        def work(connection: Connection) -> participants.Participant:
            return participants.revoke(connection, participant, at=now, reason=reason)

        def announce(row: participants.Participant) -> None:
            self._shut_out.add(participant)
            self._tell_revoked(Caller(row.role, participant), reason)

        return await self._recorded(work, announce)

    async def revoke_operator(
        self, name: str, reason: str, check: Callable[[Connection], None] = lambda _: None
    ) -> int:
        """Revoke an operator at once; returns how many of its unused join tokens became void.

        Args:
            name: the operator.
            reason: the reason.
            check: called in the transaction; raises to refuse.
        """
        now = self._clock()

        def work(connection: Connection) -> int:
            check(connection)
            certificates.revoke_subject(connection, Role.OPERATOR, name, at=now, reason=reason)
            return tokens.void(connection, created_by=name, at=now)

        return await self._recorded(work, lambda _: self._tell_revoked(Caller(Role.OPERATOR, name), reason))

    async def _recorded(self, work: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """Record a change and, once it is durable, call ``announce``, even if the caller is cancelled meanwhile."""
        recording = asyncio.wrap_future(self._writer.submit(work))
        try:
            found = await asyncio.shield(recording)
        except asyncio.CancelledError:
            recording.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else announce(done.result())
            )
            raise
        announce(found)
        return found

    async def void_tokens(
        self, ids: Sequence[str], created_by: str, *, project: str | None = None, organisation: str = ""
    ) -> int:
        """Void unused join tokens: these, or all made by an operator; returns how many were still usable.

        Args:
            ids: ids of tokens.
            created_by: the operator who made them, if there are no ids.
            project: the tokens' project; None for any.
            organisation: the tokens' organisation; empty for any.

        Raises:
            RecordMissingError: if a token does not exist; then none is voided.
        """
        now = self._clock()

        def work(connection: Connection) -> int:
            if ids:
                return tokens.void_named(connection, ids, at=now, project=project, organisation=organisation)
            return tokens.void(connection, created_by=created_by, at=now, project=project, organisation=organisation)

        return await self._writer.run(work)

    async def create_tokens(
        self,
        organisation: str,
        kind: ParticipantKind,
        *,
        lifetime_s: float,
        count: int,
        operator: str,
        address: str,
        bound: Bound = UNBOUND,
        shows_counts: bool = True,
    ) -> list[JoinToken]:
        """Mint one-time join tokens, of which only hashes are kept. ``address`` is where their holders enrol.

        ``shows_counts``: whether a refusal by the project's quota may tell what is in the project.

        Raises:
            InvalidRequestError: for an invalid organisation or lifetime, or a host name of another aggregator.
            ConflictError: if the project is closed.
            LimitExceededError: if the project would exceed its quota of participants.
            RevokedError: if the operator has just been revoked.
        """
        now = self._clock()
        minted = [
            mint(
                organisation,
                kind,
                created_by=operator,
                now=now,
                lifetime_s=lifetime_s,
                bound=bound,
            )
            for _ in range(count)
        ]
        more = 0 if kind is ParticipantKind.AGGREGATOR else count

        def work(connection: Connection) -> None:
            check_operator_stands(connection, operator, now)
            if bound.hosts:
                check_names(connection, organisation, bound, now=now)
            check_participants(connection, bound.project, more, now=now, promised=True, shows_counts=shows_counts)
            for token in minted:
                tokens.add(connection, token.record)

        await self._writer.run(work)
        words = "%d join tokens made: project %s, organisation %s, kind %s, operator %s"
        log.info(words, count, bound.project, organisation, kind, operator)
        ca = self._authority.certificate_pem

        def pack() -> list[JoinToken]:
            return [JoinToken(address, ca, token.record.id, token.secret) for token in minted]

        return await asyncio.to_thread(pack)

    async def adopt_insecure(self, participant: str) -> None:
        """Create the row of a participant that was identified without a certificate (``--insecure``)."""
        now = self._clock()

        def work(connection: Connection) -> None:
            if participants.get(connection, participant) is None:
                participants.add(
                    connection, participants.Participant(participant, "insecure", ParticipantKind.EDGE, enrolled_at=now)
                )

        await self._writer.run(work)

    async def _renew(self, participant: str, proved_at: float, csr_pem: bytes, role: Role) -> bytes:
        """Issue a certificate to replace one issued at ``proved_at``. Raises what ``renew`` raises."""
        request, now = await asyncio.to_thread(CertificateRequest.parse, csr_pem), self._clock()
        try:  # before signing, so that a flood of renewals costs only reads
            await self._reader.run(self._check_admissible, participant, now, proved_at)
        except UnauthenticatedError as error:
            self._refusals.warn(participant, error)
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
            raise UnauthenticatedError("participant.unknown", f"no participant {name!r}", _RE_ENROL)
        if participant.revoked_at is not None:
            raise ForbiddenError(
                "participant.revoked", f"participant {name} was revoked", _RE_ENROL, recovery=Recovery.ENROL
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

    def _tell_revoked(self, caller: Caller, reason: str) -> None:
        """Announce a revocation; must run without an await after it became durable, so that identifications see it."""
        self._revocations += 1
        self._known.clear()
        error = RevokedError.of(caller.name, reason)
        for listener in self._listeners:
            listener(caller, error)

    def _is_first_use(self, found: certificates.Certificate) -> bool:
        unused = found.role is not Role.OPERATOR and found.first_used_at is None
        return unused and found.revoked_at is None and found.not_after > self._clock()

    def _refused(self, subject: str, error: UnauthenticatedError) -> UnauthenticatedError:
        self._refusals.warn(subject, error)
        return error

    async def _certificate(self, pem: bytes) -> certificates.Certificate:
        """Find the record of a certificate whose key the caller has proved; records its first use."""
        key = _key(pem)
        found = self._known.get(key)
        if found is None:
            return await self._look_up(pem)
        self._known.move_to_end(key)
        return found

    async def _look_up(self, pem: bytes) -> certificates.Certificate:
        peer, now = Peer.from_pem(pem), self._clock()
        if peer.role is Role.SERVER:
            server = _of_server(self._authority.require_issued(pem))
            _remember(self._known, _key(pem), server)
            return server
        revocations = self._revocations
        found = await self._reader.run(lambda connection: certificates.get(connection, peer.fingerprint))
        if found is None and peer.role is not Role.OPERATOR and peer.not_before < self._restored_at:
            found = await self._writer.run(_adopt, self._authority.require_issued(pem))
        if found is not None and self._is_first_use(found):
            found = await self._writer.run(lambda write: certificates.record_use(write, peer.fingerprint, at=now))
        if found is None:
            message = f"the certificate of {peer.name} was not issued by this server"
            raise self._refused(peer.name, UnauthenticatedError("certificate.unknown", message, _RE_ENROL))
        if revocations != self._revocations:  # the read may be older than the revocation
            return await self._look_up(pem)
        _remember(self._known, _key(pem), found)
        return found


def check_operator_stands(connection: Connection, name: str, now: float) -> None:
    """Refuse, within a transaction, a change by an operator who has been revoked meanwhile.

    An operator without any certificate is connected with ``--insecure``.

    Raises:
        RevokedError: if none of its certificates is valid.
    """
    rows = certificates.of_subject(connection, Role.OPERATOR, name)
    if rows and not any(row.revoked_at is None and row.not_after > now for row in rows):
        raise RevokedError.of(name, rows[0].revoked_reason)


def _has_come(connection: Connection, name: str) -> bool:
    """Whether a participant has ever used a certificate; ``last_seen_at`` outlives the certificates' rows."""
    participant = participants.get(connection, name)
    seen = participant is not None and participant.last_seen_at is not None
    return seen or certificates.newer_was_used(connection, name, issued_at=0.0)


def _adopt(connection: Connection, peer: Peer) -> certificates.Certificate | None:
    """Record a known participant's certificate that the restored database lacks; None for an unknown participant.

    Checks that the authority signed it, since a gateway passes on certificates that no handshake here has verified.
    Only this federation's servers issue certificates.
    """
    participant = participants.get(connection, peer.name)
    if participant is None or participant.revoked_at is not None:
        return None
    if certificates.get(connection, peer.fingerprint) is None:
        certificates.add(connection, peer, issued_at=peer.issued_at)
    return certificates.get(connection, peer.fingerprint)


def _of_server(peer: Peer) -> certificates.Certificate:
    """The certificate of another server, which is in no database, since that server holds the authority's key."""
    return certificates.Certificate(
        peer.fingerprint, peer.role, peer.name, peer.serial, peer.issued_at, peer.not_after, peer.issued_at
    )


def _key(pem: bytes) -> bytes:
    """The cache key of a certificate, a twentieth of its size; 10,000 are cached."""
    return hashlib.sha256(pem).digest()


def _remember(cache: OrderedDict[K, V], key: K, value: V) -> None:
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > _CACHED:
        cache.popitem(last=False)
