"""Which servers may use a database of which schema, so that servers of two versions can take turns at one database.

Expand and contract (https://martinfowler.com/bliki/ParallelChange.html): a migration only adds, in such a way that
servers of the release before go on reading and writing; what it replaces is retired, and dropped by a later release.
``CONTRIBUTING.md`` has the rules, and ``tests/server/stores/test_migration_rules.py`` enforces them.
"""

from __future__ import annotations

from collections.abc import Mapping

RELEASED: Mapping[str, str] = {}
"""Release → its newest revision, oldest release first. A release adds its line."""

FIRST = "0008"
"""The oldest revision whose servers can share a database with newer ones: those before refuse every newer revision."""

USABLE_FROM: Mapping[str, str] = {
    FIRST: FIRST,
    "0009": FIRST,
}
"""Revision, from ``FIRST`` on → oldest revision whose servers may use a database that is at it.

That is the newest revision of the release before (``FIRST`` before the first release), so that this one's servers can
take over from the next one's. A database keeps the line of its revision, for servers that do not know it.
"""

LOCKS_OUT: Mapping[str, str] = {}
"""Revision whose ``USABLE_FROM`` is newer than that → why servers of the release before must not use the database."""

PROJECTS_FROM = "0009"
"""The oldest revision whose servers may use a database with more projects than ``default``: those before it would mix
the participants of all of them."""

RETIRED: Mapping[str, str] = {}
"""``table`` or ``table.column`` → oldest revision whose servers neither read nor write it.

It stays in ``stores.schema`` until a migration drops it, which it may once its ``USABLE_FROM`` is at least that.
"""


def usable_from(revision: str) -> str:
    """The oldest revision whose servers may use a database at a revision that this version knows."""
    return USABLE_FROM.get(revision, revision)
