"""Paged lists, newest first, which stay correct if several rows have the same time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, Table

from atoll.server.errors import InvalidRequestError


def mark(created_at: float, row_id: str) -> str:
    """The position after a row, for ``newest``; it stays valid when the row is removed."""
    return f"{created_at!r}:{row_id}"


def newest(query: Select[Any], table: Table, *, after: str, limit: int) -> Select[Any]:
    """The query's newest ``limit`` rows after the position ``after`` (empty: start at the newest).

    Raises:
        InvalidRequestError: if ``after`` is not a ``mark``.
    """
    if after:
        moment, row_id = _parsed(after)
        same = (table.c.created_at == moment) & (table.c.id > row_id)
        query = query.where((table.c.created_at < moment) | same)
    return query.order_by(table.c.created_at.desc(), table.c.id).limit(limit)


def _parsed(text: str) -> tuple[float, str]:
    moment, _, row_id = text.partition(":")
    try:
        return float(moment), row_id
    except ValueError:
        raise InvalidRequestError(
            "list.after", f"{text[:80]!r} is not a position in this list", "continue from the last answer's next"
        ) from None
