"""Join tokens: only hashes are stored, and spending a token is atomic."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, true, update

from atoll.server.identity import ParticipantKind, TokenRecord, TokenUsedError
from atoll.server.stores.errors import RecordMissingError
from atoll.server.stores.paging import newest
from atoll.server.stores.row_conversion import fetch_all, fetch_one, select_all, to_row
from atoll.server.stores.schema import tokens


def add(connection: Connection, record: TokenRecord) -> None:
    """Record a new token."""
    connection.execute(insert(tokens).values(to_row(record)))


def get(connection: Connection, token_id: str) -> TokenRecord | None:
    """The record of a token, or None."""
    return fetch_one(connection, TokenRecord, select_all(TokenRecord, tokens).where(tokens.c.id == token_id))


def listed(
    connection: Connection,
    *,
    project: str | None,
    after: str = "",
    limit: int = 1000,
    unused: bool = False,
    organisation: str = "",
) -> tuple[TokenRecord, ...]:
    """Tokens of a project (None: of all), newest first, after the position ``after`` (``paging.mark``).

    ``unused`` leaves out spent tokens; ``organisation``, if given, those of other organisations.
    """
    query = select_all(TokenRecord, tokens).where(_within(project, organisation))
    if unused:
        query = query.where(tokens.c.used_at.is_(None))
    return fetch_all(connection, TokenRecord, newest(query, tokens, after=after, limit=limit))


def spend(connection: Connection, token_id: str, *, participant: str, key: str, now: float) -> str:
    """Spend a token for a participant and its public key (SHA-256 hex); only one of two concurrent calls succeeds.

    Returns the participant that the token was spent for: ``participant``, or an earlier one if the same key had already
    spent it and the answer was lost.

    Raises:
        RecordMissingError: no such token.
        TokenUsedError: another key has spent it.
    """
    unspent = (tokens.c.id == token_id) & tokens.c.used_at.is_(None)
    spending = update(tokens).where(unspent).values(used_at=now, used_by=participant, used_key=key)
    if connection.execute(spending).rowcount == 1:
        return participant
    record = get(connection, token_id)
    if record is None:
        raise RecordMissingError("token", token_id)
    if record.used_key != key or record.used_by is None:
        raise TokenUsedError(f"join token {token_id} has been used; each admits one participant")
    return record.used_by


def void(
    connection: Connection, *, created_by: str, at: float, project: str | None = None, organisation: str = ""
) -> int:
    """Expire an operator's unspent tokens for a project and an organisation; returns their number."""
    return _expire(connection, (tokens.c.created_by == created_by) & _within(project, organisation), at)


def void_named(
    connection: Connection, ids: Sequence[str], *, at: float, project: str | None = None, organisation: str = ""
) -> int:
    """Expire the unspent ones of these tokens; returns their number.

    Raises:
        RecordMissingError: a token does not exist for the project and organisation; then none is expired.
    """
    known = set(connection.scalars(select(tokens.c.id).where(tokens.c.id.in_(ids), _within(project, organisation))))
    if missing := [one for one in ids if one not in known]:
        raise RecordMissingError("token", missing[0])
    return _expire(connection, tokens.c.id.in_(ids), at)


def void_of_project(connection: Connection, project: str, *, at: float) -> int:
    """Expire the unspent tokens of a project; returns their number."""
    return _expire(connection, tokens.c.project == project, at)


def count_open(connection: Connection, project: str, *, now: float) -> int:
    """Number of participants that a project's unspent tokens can still admit, not counting aggregators."""
    ours = (tokens.c.project == project) & (tokens.c.kind != ParticipantKind.AGGREGATOR)
    query = select(func.count()).select_from(tokens).where(ours, _standing(now))
    return int(connection.execute(query).scalar_one())


def named_open(connection: Connection, now: float) -> list[tuple[str, str, str]]:
    """Host names, organisation and project of each unspent token for an aggregator."""
    standing = (tokens.c.kind == ParticipantKind.AGGREGATOR) & _standing(now)
    query = select(tokens.c.hosts, tokens.c.organisation, tokens.c.project).where(standing)
    return [(row.hosts, row.organisation, row.project) for row in connection.execute(query)]


def count_expired(connection: Connection, *, expired_before: float) -> int:
    """Number of tokens that ``prune`` would remove."""
    query = select(func.count()).select_from(tokens).where(_stale(expired_before))
    return connection.execute(query).scalar_one()


def prune(connection: Connection, *, expired_before: float, most: int) -> int:
    """Remove up to ``most`` unspent tokens that expired before a time; returns their number."""
    chosen = select(tokens.c.id).where(_stale(expired_before)).limit(most)
    return connection.execute(delete(tokens).where(tokens.c.id.in_(chosen))).rowcount


def _within(project: str | None, organisation: str) -> ColumnElement[bool]:
    """Tokens for a project (None: for any) and an organisation (empty: for any)."""
    ours = true() if project is None else tokens.c.project == project
    return ours & (tokens.c.organisation == organisation) if organisation else ours


def _expire(connection: Connection, which: ColumnElement[bool], at: float) -> int:
    return connection.execute(update(tokens).where(which, _standing(at)).values(expires_at=at)).rowcount


def _standing(now: float) -> ColumnElement[bool]:
    return tokens.c.used_at.is_(None) & (tokens.c.expires_at > now)


def _stale(expired_before: float) -> ColumnElement[bool]:
    return (tokens.c.expires_at < expired_before) & tokens.c.used_at.is_(None)
