"""Certificates issued to participants and operators, and which of them are revoked."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from atoll.server.identity import Peer, Role
from atoll.server.stores.rows import fetch_all, fetch_one, select_all
from atoll.server.stores.schema import certificates


@dataclass(frozen=True)
class Certificate:
    """One issued certificate; ``subject`` is a participant id or an operator's name."""

    fingerprint: str
    role: Role
    subject: str
    serial: str
    issued_at: float
    not_after: float
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
    """All certificates of operators, by name; those of one name oldest first."""
    query = select_all(Certificate, certificates).where(certificates.c.role == Role.OPERATOR)
    return fetch_all(connection, Certificate, query.order_by(certificates.c.subject, certificates.c.issued_at))


def issued_since(connection: Connection, role: Role, subject: str, *, since: float) -> tuple[float, ...]:
    """When each certificate of one participant or operator was issued, those after ``since``, in order."""
    chosen = (certificates.c.role == role) & (certificates.c.subject == subject) & (certificates.c.issued_at > since)
    query = select(certificates.c.issued_at).where(chosen).order_by(certificates.c.issued_at)
    return tuple(connection.execute(query).scalars())


def revoke_subject(connection: Connection, role: Role, subject: str, *, at: float, reason: str) -> int:
    """Revoke every certificate of a participant or operator that is not yet; how many."""
    standing = (certificates.c.role == role) & (certificates.c.subject == subject) & certificates.c.revoked_at.is_(None)
    return connection.execute(
        update(certificates).where(standing).values(revoked_at=at, revoked_reason=reason)
    ).rowcount


def revoked(connection: Connection, *, now: float) -> frozenset[str]:
    """Fingerprints of the certificates that are revoked and have not yet expired."""
    query = select(certificates.c.fingerprint).where(
        certificates.c.revoked_at.is_not(None), certificates.c.not_after > now
    )
    return frozenset(connection.execute(query).scalars())


def count_expired(connection: Connection, *, expired_before: float) -> int:
    """How many certificates ``prune`` would forget."""
    query = select(func.count()).select_from(certificates).where(certificates.c.not_after < expired_before)
    return connection.execute(query).scalar_one()


def prune(connection: Connection, *, expired_before: float, most: int) -> int:
    """Forget up to ``most`` certificates that expired before then; how many."""
    stale = select(certificates.c.fingerprint).where(certificates.c.not_after < expired_before).limit(most)
    return connection.execute(delete(certificates).where(certificates.c.fingerprint.in_(stale))).rowcount
