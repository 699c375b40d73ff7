"""Host names of all servers of a database; each server knows the others' names, even while they are down."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, text

KEPT_S = 30 * 86_400.0
"""Seconds for which a server's names are kept after it was last active or connected to the active server."""
MOST_NAMES = 1024
"""Maximum number of names; the most recent are kept."""


def remember(connection: Connection, names: Collection[str], *, now: float) -> tuple[str, ...]:
    """Record names of a server, in a transaction of the writer; returns those of all servers, the newest last.

    Args:
        connection: the writer's.
        names: host names in the server's certificate.
        now: epoch seconds.
    """
    connection.execute(
        text("CREATE TABLE IF NOT EXISTS server_names (name text PRIMARY KEY, seen_at double precision NOT NULL)")
    )
    for name in sorted(names):
        connection.execute(
            text("INSERT INTO server_names VALUES (:name, :now) ON CONFLICT (name) DO UPDATE SET seen_at = :now"),
            {"name": name, "now": now},
        )
    kept = {"least": now - KEPT_S, "most": MOST_NAMES}
    connection.execute(text("DELETE FROM server_names WHERE seen_at < :least"), kept)
    newest = "SELECT name FROM server_names ORDER BY seen_at DESC, name LIMIT :most"
    connection.execute(text(f"DELETE FROM server_names WHERE name NOT IN ({newest})"), kept)  # noqa: S608
    return tuple(connection.execute(text("SELECT name FROM server_names ORDER BY seen_at, name")).scalars())
