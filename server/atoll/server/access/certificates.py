"""Identifies callers by their certificates, and revokes certificates."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from atoll.server.errors import UnauthenticatedError
from atoll.server.identity import (
    Authority,
    ParticipantKind,
    Peer,
    RevokedError,
    Rights,
    Role,
)
from atoll.server.ingest.coordinator_api import Caller
from atoll.server.stores import Reader, Writer, certificates, participants, project_roles, tokens
from atoll.server.telemetry.refusal_log import RefusalLog

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_CACHED = 16_384
RE_ENROL = "enrol again with a new join token"


class CertificateBook:
    """Identifies the holders of certificates, from a cache where possible.

    Only this process revokes, so its cache is authoritative.

    Args:
        authority: the federation's certificate authority.
        writer: the database's writer.
        reader: the database's readers.
        clock: epoch seconds, UTC.
        restored_at: when the database was restored from a backup, which lacks certificates renewed since; 0 if it was
            not.
    """

    def __init__(
        self,
        authority: Authority,
        writer: Writer,
        reader: Reader,
        clock: Callable[[], float],
        restored_at: float = 0.0,
    ) -> None:
        self._authority = authority
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._restored_at = restored_at
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

    def refused(self, subject: str, error: UnauthenticatedError) -> UnauthenticatedError:
        """Log that a certificate of ``subject`` was refused, unless this was logged recently; returns the error."""
        self._refusals.warn(subject, error)
        return error

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
        found = await self.find(certificate_pem)
        if found.revoked_at is not None:
            raise self.refused(found.subject, RevokedError.of(found.subject, found.revoked_reason))
        if found.not_after <= self._clock():
            message = f"the certificate of {found.subject} expired"
            raise self.refused(found.subject, UnauthenticatedError("certificate.expired", message, RE_ENROL))
        if found.role is Role.SERVER:
            return Caller(found.role, found.subject)
        if found.role is not Role.OPERATOR:
            newest = max(found.not_after, self._newest.get(found.subject, 0.0))
            _remember(self._newest, found.subject, newest)
            return Caller(found.role, found.subject)
        return Caller(found.role, found.subject, await self.rights(found.subject))

    async def find(self, pem: bytes) -> certificates.Certificate:
        """Find the record of a certificate whose key the caller has proved; records its first use."""
        key = _key(pem)
        found = self._known.get(key)
        if found is None:
            return await self._look_up(pem)
        self._known.move_to_end(key)
        return found

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
            self._announce_revoked(Caller(row.role, participant), reason)

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

        return await self._recorded(work, lambda _: self._announce_revoked(Caller(Role.OPERATOR, name), reason))

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

    async def adopt_insecure(self, participant: str) -> None:
        """Create the row of a participant that was identified without a certificate (``--insecure``)."""
        now = self._clock()

        def work(connection: Connection) -> None:
            if participants.get(connection, participant) is None:
                participants.add(
                    connection, participants.Participant(participant, "insecure", ParticipantKind.EDGE, enrolled_at=now)
                )

        await self._writer.run(work)

    def _announce_revoked(self, caller: Caller, reason: str) -> None:
        """Announce a revocation; must run without an await after it became durable, so that identifications see it."""
        self._revocations += 1
        self._known.clear()
        error = RevokedError.of(caller.name, reason)
        for listener in self._listeners:
            listener(caller, error)

    def _is_first_use(self, found: certificates.Certificate) -> bool:
        unused = found.role is not Role.OPERATOR and found.first_used_at is None
        return unused and found.revoked_at is None and found.not_after > self._clock()

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
            raise self.refused(peer.name, UnauthenticatedError("certificate.unknown", message, RE_ENROL))
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
