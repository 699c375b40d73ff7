"""The server itself as frozen values: its state, log and audit log, and the storage that it pruned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerInfo:
    """The server: ``now`` is its clock when it answered."""

    version: str
    protocol: int
    now: float
    started_at: float
    connected: int
    workers: int
    disk_free_bytes: int
    evaluators: tuple[str, ...]
    disk_reserve_bytes: int = 0


@dataclass(frozen=True)
class LogLine:
    """A line of the server's log.

    Attributes:
        number: increases from line to line; starts over when the server starts.
        level: info, warning or error.
        run: its subject, like ``participant`` and ``operator``; each is empty if the line has none.
        code: the code of an error.
    """

    number: int
    logged_at: float
    level: str
    logger: str
    message: str
    run: str = ""
    participant: str = ""
    operator: str = ""
    code: str = ""


@dataclass(frozen=True)
class AuditEntry:
    """One action of an operator. Times are epoch seconds UTC.

    Attributes:
        seq: its place in the hash chain: 0, 1, 2, ... without a gap.
        at: when it ended.
        operator: the operator's name.
        credential: the operator's proof of identity.
        address: the caller's address; empty if unknown.
        action: the action, such as ``run.cancel``.
        subject: the subject, such as a run's id.
        detail: further values, such as a reason.
        outcome: done, refused, failed or interrupted.
        code: of the error.
        previous: the digest of the entry before.
        digest: SHA-256 over all other fields as JSON with sorted keys and no spaces, except an empty ``project``.
        project: the subject's project; empty for the whole server, or if ``default`` was the only project.
    """

    seq: int
    at: float
    operator: str
    credential: str
    address: str
    action: str
    subject: str
    detail: str
    outcome: str
    code: str
    previous: str
    digest: str
    project: str = ""


@dataclass(frozen=True)
class AuditChain:
    """The whole audit log: its first entry's number, the number of entries, the last one's digest, and the flaw."""

    first: int
    entries: int
    head: str
    flaw: str


@dataclass(frozen=True)
class PrunedStorage:
    """Items that were removed, or would be, of one ``kind`` and one run (empty: of no run)."""

    kind: str
    run: str
    count: int
    stored_bytes: int
