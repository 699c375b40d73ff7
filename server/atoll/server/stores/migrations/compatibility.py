"""Which servers may use which schema, so that servers of two versions can take turns at one database.

Expand and contract (https://martinfowler.com/bliki/ParallelChange.html): a migration only adds, in such a way that
servers of the previous release can continue to read and write. Columns and tables that it replaces are retired, and
dropped by a later release. ``CONTRIBUTING.md`` has the rules, and ``tests/server/stores/test_migration_rules.py``
enforces them.
"""

from __future__ import annotations

from collections.abc import Mapping

RELEASED: Mapping[str, str] = {}
"""Release → its newest revision, oldest release first. Each release adds a line."""

FIRST = "0008"
"""The oldest revision whose servers can share a database with newer ones; earlier ones refuse newer revisions."""

USABLE_FROM: Mapping[str, str] = {
    FIRST: FIRST,
    "0009": FIRST,
}
"""Revision, from ``FIRST`` on → oldest revision whose servers may use a database at it.

That is the newest revision of the previous release (``FIRST`` before the first release), so that servers of one release
can take over from servers of the next. A database stores the entry of its revision, for servers that do not know that
revision.
"""

LOCKS_OUT: Mapping[str, str] = {}
"""Revision whose ``USABLE_FROM`` is newer than that → why servers of the previous release must not use the database."""

PROJECTS_FROM = "0009"
"""The oldest revision whose servers may use a database with projects other than ``default``: earlier servers would mix
the participants of all projects."""

RETIRED: Mapping[str, str] = {}
"""``table`` or ``table.column`` → oldest revision whose servers neither read nor write it.

It stays in ``stores.schema`` until a migration drops it. A migration may do so if its own ``USABLE_FROM`` is at least
that revision.
"""


def usable_from(revision: str) -> str:
    """The oldest revision whose servers may use a database at ``revision``, which this version knows."""
    return USABLE_FROM.get(revision, revision)
