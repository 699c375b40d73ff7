"""Snapshots of a run's state at a point in its event log, so that a start need not replay the whole log.

The newest two of a run are kept: if one is damaged, the other and the events since then give the same state.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from atoll.server.stores.row_checksums import checksum_of
from atoll.server.stores.row_conversion import fetch_all, select_all, to_row
from atoll.server.stores.schema import snapshots

KEPT = 2


@dataclass(frozen=True)
class Snapshot:
    """A run's state before event ``seq``; ``body`` is JSON in the format ``version``."""

    run_id: str
    seq: int
    version: int
    body: str
    checksum: str

    @classmethod
    def of(cls, run_id: str, seq: int, version: int, body: str) -> Snapshot:
        """Make a snapshot with its checksum."""
        return cls(run_id, seq, version, body, checksum_of(run_id, seq, version, body))

    @property
    def whole(self) -> bool:
        """Whether the checksum matches."""
        return self.checksum == checksum_of(self.run_id, self.seq, self.version, self.body)


def put(connection: Connection, snapshot: Snapshot) -> int:
    """Record a newer snapshot and delete all but the newest two; returns the ``seq`` of the older one kept.

    Events before it are not needed to resume the run. Returns 0 if this is the first snapshot.
    """
    connection.execute(insert(snapshots).values(to_row(snapshot)))
    of_run = snapshots.c.run_id == snapshot.run_id
    newest = select(snapshots.c.seq).where(of_run).order_by(snapshots.c.seq.desc()).limit(KEPT)
    kept: list[int] = list(connection.execute(newest).scalars())
    if len(kept) < KEPT:
        return 0
    connection.execute(delete(snapshots).where(of_run, snapshots.c.seq < kept[-1]))
    return kept[-1]


def newest_first(connection: Connection, run_id: str) -> tuple[Snapshot, ...]:
    """A run's snapshots, newest first; the caller checks whether each is ``whole``."""
    query = select_all(Snapshot, snapshots).where(snapshots.c.run_id == run_id).order_by(snapshots.c.seq.desc())
    return fetch_all(connection, Snapshot, query)


def drop(connection: Connection, run_id: str) -> None:
    """Remove the snapshots of a run that has ended."""
    connection.execute(delete(snapshots).where(snapshots.c.run_id == run_id))
