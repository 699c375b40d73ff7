"""The audit log: one entry for each action of an operator, in a hash chain like the privacy ledger's.

Entries are appended and never changed. Only the oldest are ever removed. Each removal is itself an entry, with the
digest of the last entry removed, so the first remaining entry still has a proven predecessor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from atoll.server.errors import InvalidRequestError
from atoll.server.stores.hash_chain import digest_of
from atoll.server.stores.row_conversion import fetch_all, select_all, to_row
from atoll.server.stores.schema import audit

BEGINNING = "0" * 64
"""``previous`` of the first entry."""
REMOVAL = "audit.prune"
"""The server's action of removing old entries; its ``subject`` is the digest of the last entry removed."""
_PAGE = 2000


@dataclass(frozen=True)
class AuditEntry:
    """One action. Times are epoch seconds UTC.

    Attributes:
        at: when it ended.
        operator: the operator's name; for a sign-in through a provider, the subject that the provider vouches for.
        credential: the operator's proof of identity.
        address: IP address of the caller; empty if unknown.
        action: the action, such as ``run.cancel``.
        subject: the subject, such as the id of a run.
        detail: further values, such as a reason.
        outcome: ``done``, ``refused``, ``failed``, or ``interrupted`` if the call was cut off.
        code: the error's code.
        seq: 0, 1, 2, ... without a gap.
        previous: the digest of the entry before.
        digest: over all other fields; ``project`` is included only if it is not empty, as before projects existed.
        project: the subject's project; empty for the whole server, or if ``default`` was the only project.
    """

    at: float
    operator: str
    credential: str
    address: str
    action: str
    subject: str = ""
    detail: str = ""
    outcome: str = "done"
    code: str = ""
    seq: int = 0
    previous: str = BEGINNING
    digest: str = ""
    project: str = ""

    @property
    def expected_digest(self) -> str:
        """SHA-256 over the canonical text of all fields but the digest."""
        values = asdict(self)
        del values["digest"]
        if not self.project:
            del values["project"]
        return digest_of(values | {"at": float(self.at)})


@dataclass(frozen=True)
class AuditFilter:
    """Selects entries; an empty or None field matches all."""

    operator: str = ""
    action: str = ""
    subject: str = ""
    outcome: str = ""
    project: str = ""
    since: float | None = None
    until: float | None = None

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """The SQL conditions; an action ``run`` matches all that begin with ``run.``."""
        for name in ("operator", "subject", "outcome", "project"):
            if value := getattr(self, name):
                yield audit.c[name] == value
        if self.action:
            within = audit.c.action.startswith(f"{self.action}.", autoescape=True)
            yield (audit.c.action == self.action) | within
        if self.since is not None:
            yield audit.c.at >= self.since
        if self.until is not None:
            yield audit.c.at < self.until


@dataclass(frozen=True)
class AuditChain:
    """The state of the whole log: number of entries, the first one's number, the last one's digest, the flaw."""

    first: int
    entries: int
    head: str
    flaw: str = ""


def append(connection: Connection, entry: AuditEntry) -> AuditEntry:
    """Append an entry; returns it with its place in the chain."""
    last = _last(connection)
    placed = entry if last is None else replace(entry, seq=last.seq + 1, previous=last.digest)
    kept = replace(placed, digest=placed.expected_digest)
    connection.execute(insert(audit).values(to_row(kept)))
    return kept


def listed(
    connection: Connection, chosen: AuditFilter, *, after: str = "", limit: int = 1000
) -> tuple[AuditEntry, ...]:
    """Entries, the newest first, starting before number ``after``.

    Raises:
        InvalidRequestError: if ``after`` is not a number.
    """
    query = select_all(AuditEntry, audit).where(*chosen.conditions())
    if after:
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            remedy = "continue from the last answer's next"
            raise InvalidRequestError("list.after", f"{after[:80]!r} is not a position in this list", remedy)
        query = query.where(audit.c.seq < int(after))
    return fetch_all(connection, AuditEntry, query.order_by(audit.c.seq.desc()).limit(limit))


def verified(connection: Connection) -> AuditChain:
    """Verify every entry, a page at a time; the flaw is about the first entry that does not fit."""
    before: AuditEntry | None = None
    first, flaw, removed_up_to = 0, "", BEGINNING
    anchor = BEGINNING
    for entry in _all(connection):
        if before is None:
            first, anchor = entry.seq, entry.previous
        elif not flaw and (entry.seq, entry.previous) != (before.seq + 1, before.digest):
            flaw = f"entry {entry.seq} of the audit log does not follow entry {before.seq}: some are missing or moved"
        if not flaw and entry.digest != entry.expected_digest:
            flaw = f"entry {entry.seq} of the audit log was changed"
        if entry.action == REMOVAL:
            removed_up_to = entry.subject
        before = entry
    if not flaw and anchor != removed_up_to:
        flaw = f"entries of the audit log before {first} are missing, and no entry says that they were removed"
    count = 0 if before is None else before.seq - first + 1
    return AuditChain(first, count, BEGINNING if before is None else before.digest, flaw)


def count_old(connection: Connection, *, before: float) -> int:
    """Number of entries that ``prune`` would remove."""
    boundary = _boundary(connection, before)
    query = select(func.count()).select_from(audit)
    return connection.execute(query if boundary is None else query.where(audit.c.seq < boundary)).scalar_one()


def prune(connection: Connection, *, before: float, now: float) -> int:
    """Remove the oldest entries up to the first that is not older than ``before``; append an entry about it."""
    boundary = _boundary(connection, before)
    old = audit.c.seq >= 0 if boundary is None else audit.c.seq < boundary
    newest = select_all(AuditEntry, audit).where(old).order_by(audit.c.seq.desc()).limit(1)
    found = fetch_all(connection, AuditEntry, newest)
    if not found:
        return 0
    detail = f"entries up to {found[0].seq}"
    append(connection, AuditEntry(now, "server", "", "", REMOVAL, found[0].digest, detail))
    return connection.execute(delete(audit).where(audit.c.seq <= found[0].seq)).rowcount


def _boundary(connection: Connection, before: float) -> int | None:
    """The number of the first entry to keep; clocks can be set back, so times need not be in order."""
    found: int | None = connection.execute(select(func.min(audit.c.seq)).where(audit.c.at >= before)).scalar_one()
    return found


def _last(connection: Connection) -> AuditEntry | None:
    found = fetch_all(connection, AuditEntry, select_all(AuditEntry, audit).order_by(audit.c.seq.desc()).limit(1))
    return found[0] if found else None


def _all(connection: Connection) -> Iterator[AuditEntry]:
    """All entries in the order of their numbers, a page at a time."""
    last = -1
    while True:
        query = select_all(AuditEntry, audit).where(audit.c.seq > last).order_by(audit.c.seq).limit(_PAGE)
        page = fetch_all(connection, AuditEntry, query)
        if not page:
            return
        yield from page
        last = page[-1].seq
