"""Minting and checking of one-time join tokens. Only a hash is stored; ``stores`` spends a token atomically."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from atoll.server.errors import InvalidRequestError
from atoll.server.identity.errors import (
    TokenExpiredError,
    TokenScopeError,
    TokenUnknownError,
    TokenUsedError,
)
from atoll.server.identity.names import DEFAULT_PROJECT, ParticipantKind, check_organisation, new_token_id

DEFAULT_LIFETIME_S = 24 * 3600.0
MAX_LIFETIME_S = 90 * 24 * 3600.0
_SECRET_BYTES = 24  # 192 bits from the operating system, so that a plain hash needs no salt or stretching
_HASH_DOMAIN = b"atoll join token 1\n"


@dataclass(frozen=True)
class TokenRecord:
    """The server's record of a token. Times are epoch seconds UTC; ``used_by`` is a participant id.

    Attributes:
        hosts: for an aggregator's token, the names that its server certificate may have, separated by spaces.
        through: id of the aggregator that its participant may also connect to; empty for the server only.
        project: the project that its participant will belong to.

    ``used_key`` is the SHA-256 (hex) of the public key that the token admitted. The same key may ask again, since the
    answer may have been lost in transit.
    """

    id: str
    secret_hash: str
    organisation: str
    kind: ParticipantKind
    created_at: float
    expires_at: float
    created_by: str
    used_at: float | None = None
    used_by: str | None = None
    used_key: str | None = None
    hosts: str = ""
    through: str = ""
    project: str = DEFAULT_PROJECT


@dataclass(frozen=True)
class Bound:
    """The bindings of a token's holder; see ``TokenRecord``."""

    hosts: str = ""
    through: str = ""
    project: str = DEFAULT_PROJECT


UNBOUND = Bound()


@dataclass(frozen=True)
class MintedToken:
    """A new token: the secret, to be shown once, and the record to keep."""

    secret: str = field(repr=False)
    record: TokenRecord


def mint(
    organisation: str,
    kind: ParticipantKind,
    *,
    created_by: str,
    now: float,
    lifetime_s: float = DEFAULT_LIFETIME_S,
    bound: Bound = UNBOUND,
) -> MintedToken:
    """Make a token that admits one participant of ``organisation`` until ``now + lifetime_s``.

    Raises:
        NameFormatError: for an invalid organisation name.
        InvalidRequestError: for a lifetime that is not within (0, 90 days].
    """
    check_organisation(organisation)
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise InvalidRequestError(
            "token.lifetime", f"lifetime_s {lifetime_s}: must be above 0 and at most {MAX_LIFETIME_S:.0f} (90 days)"
        )
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    token_id = new_token_id()
    record = TokenRecord(
        id=token_id,
        secret_hash=_hash(token_id, secret),
        organisation=organisation,
        kind=kind,
        created_at=now,
        expires_at=now + lifetime_s,
        created_by=created_by,
        hosts=bound.hosts,
        through=bound.through,
        project=bound.project,
    )
    return MintedToken(secret, record)


def verify(
    record: TokenRecord | None,
    secret: str,
    *,
    now: float,
    key: str | None = None,
    organisation: str | None = None,
    kind: ParticipantKind | None = None,
) -> TokenRecord:
    """Check a secret against the record found for its id (None if there is none); return the record.

    ``key`` is the SHA-256 (hex) of the caller's public key; the key that spent the token may ask again until the token
    expires. ``organisation`` and ``kind``, if given, are the caller's claims.

    Raises:
        TokenUnknownError: no record, or another secret. The comparison takes constant time.
        TokenScopeError: the token is for another organisation or kind.
        TokenUsedError: another key has spent it.
        TokenExpiredError: it has expired.
    """
    expected = record.secret_hash if record is not None else _hash("", "")
    same = hmac.compare_digest(expected, _hash(record.id if record is not None else "-", secret))
    if record is None or not same:
        raise TokenUnknownError("the join token is not known here")
    if organisation is not None and organisation != record.organisation:
        raise TokenScopeError(
            f"join token {record.id} is for organisation {record.organisation!r}, not {organisation!r}"
        )
    if kind is not None and kind != record.kind:
        raise TokenScopeError(f"join token {record.id} is for a participant of kind {record.kind}, not {kind}")
    if record.used_at is not None and (key is None or key != record.used_key):
        raise TokenUsedError(f"join token {record.id} has been used; each admits one participant")
    if now >= record.expires_at:
        raise TokenExpiredError(f"join token {record.id} has expired")
    return record


def check_kind(record: TokenRecord, *, aggregator: bool) -> None:
    """Check whether a token is for an aggregator, before it is spent by a caller of the wrong kind.

    Raises:
        TokenScopeError: if an aggregator presents a participant's token, or a participant an aggregator's.
    """
    if aggregator and record.kind is not ParticipantKind.AGGREGATOR:
        raise TokenScopeError(
            f"join token {record.id} is for a participant of kind {record.kind}, not for an aggregator",
            "give a token made with `atoll token new --kind aggregator --serves HOST`; this one is still good for a "
            "participant",
        )
    if not aggregator and record.kind is ParticipantKind.AGGREGATOR:
        raise TokenScopeError(
            f"join token {record.id} is for an aggregator, not for a participant",
            "use it with `atoll aggregator start --token`, and ask the operator for a participant's token",
        )


def _hash(token_id: str, secret: str) -> str:
    digest = hashlib.sha256(_HASH_DOMAIN)
    for part in (token_id, secret):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
