"""Certificates issued to participants and operators, and their revocation."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from atoll.server.identity import Peer, Role
from atoll.server.stores.row_conversion import fetch_all, fetch_one, select_all
from atoll.server.stores.schema import certificates


@dataclass(frozen=True)
class Certificate:
    """One issued certificate. Times are epoch seconds UTC.

    Attributes:
        fingerprint: SHA-256 of the certificate's DER, hex.
        role: the holder's role.
        subject: a participant id or an operator's name.
        serial: hex.
        issued_at: when it was issued. A participant's later certificate has a later time, even if the clock was set
            back.
        not_after: when it expires.
        first_used_at: when a participant first made a call with it; None if it was not used, or is an operator's.
        revoked_at: when it was revoked; None if it is valid.
        revoked_reason: why it was revoked.
    """

    fingerprint: str
    role: Role
    subject: str
    serial: str
    issued_at: float
    not_after: float
    first_used_at: float | None = None
    revoked_at: float | None = None
    revoked_reason: str = ""


def add(connection: Connection, peer: Peer, *, issued_at: float) -> None:
    """Record a certificate that is about to be handed out."""
    row = {
        "fingerprint": peer.fingerprint,
        "role": peer.role,
        "subject": peer.name,
        "serial": peer.serial,
        "issued_at": issued_at,
        "not_after": peer.not_after,
        "revoked_reason": "",
    }
    connection.execute(insert(certificates).values(row))


def get(connection: Connection, fingerprint: str) -> Certificate | None:
    """The certificate with this fingerprint; None if this server did not issue it."""
    query = select_all(Certificate, certificates).where(certificates.c.fingerprint == fingerprint)
    return fetch_one(connection, Certificate, query)


def of_subject(connection: Connection, role: Role, subject: str) -> tuple[Certificate, ...]:
    """All certificates of one participant or operator, newest first."""
    query = select_all(Certificate, certificates).where(certificates.c.role == role, certificates.c.subject == subject)
    return fetch_all(connection, Certificate, query.order_by(certificates.c.issued_at.desc()))


def of_operators(connection: Connection) -> tuple[Certificate, ...]:
    """All certificates of operators, by name; those with the same name oldest first."""
    query = select_all(Certificate, certificates).where(certificates.c.role == Role.OPERATOR)
    return fetch_all(connection, Certificate, query.order_by(certificates.c.subject, certificates.c.issued_at))


def issued_since(connection: Connection, role: Role, subject: str, *, since: float) -> tuple[float, ...]:
    """Times after ``since`` at which certificates of one participant or operator were issued, in order."""
    chosen = (certificates.c.role == role) & (certificates.c.subject == subject) & (certificates.c.issued_at > since)
    query = select(certificates.c.issued_at).where(chosen).order_by(certificates.c.issued_at)
    return tuple(connection.execute(query).scalars())


def last_issued_at(connection: Connection, participant: str) -> float:
    """The time at which a participant's newest certificate was issued; 0 if there is none."""
    newest = select(func.max(certificates.c.issued_at)).where(_of_participant(participant))
    return connection.execute(newest).scalar_one() or 0.0


def record_use(connection: Connection, fingerprint: str, *, at: float) -> Certificate | None:
    """Record the first use of a participant's certificate; returns its current row."""
    unused = (certificates.c.fingerprint == fingerprint) & certificates.c.first_used_at.is_(None)
    connection.execute(update(certificates).where(unused).values(first_used_at=at))
    return get(connection, fingerprint)


def newer_was_used(connection: Connection, participant: str, *, issued_at: float) -> bool:
    """Whether the participant has used a certificate that was issued after this time."""
    used = (certificates.c.issued_at > issued_at) & certificates.c.first_used_at.is_not(None)
    query = select(certificates.c.fingerprint).where(_of_participant(participant), used).limit(1)
    return connection.execute(query).scalar_one_or_none() is not None


def revoke_subject(connection: Connection, role: Role, subject: str, *, at: float, reason: str) -> int:
    """Revoke all certificates of a participant or operator; returns the number newly revoked."""
    standing = (certificates.c.role == role) & (certificates.c.subject == subject) & certificates.c.revoked_at.is_(None)
    return connection.execute(
        update(certificates).where(standing).values(revoked_at=at, revoked_reason=reason)
    ).rowcount


def count_expired(connection: Connection, *, expired_before: float) -> int:
    """Number of certificates that ``prune`` would delete."""
    query = select(func.count()).select_from(certificates).where(certificates.c.not_after < expired_before)
    return connection.execute(query).scalar_one()


def prune(connection: Connection, *, expired_before: float, most: int) -> int:
    """Delete up to ``most`` certificates that expired before a time; returns their number."""
    stale = select(certificates.c.fingerprint).where(certificates.c.not_after < expired_before).limit(most)
    return connection.execute(delete(certificates).where(certificates.c.fingerprint.in_(stale))).rowcount


def _of_participant(name: str) -> ColumnElement[bool]:
    return (certificates.c.role != Role.OPERATOR) & (certificates.c.subject == name)
