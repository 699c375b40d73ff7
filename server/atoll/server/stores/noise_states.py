"""Noise states of private runs, for their next release: one row per run, replaced in the transaction that charges.

This deletes the secret that drew the noise of the released model, so a later reader of the database cannot remove that
noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, insert, update

from atoll.server.stores.errors import RecordConflictError, RecordMissingError
from atoll.server.stores.row_checksums import checksum_of
from atoll.server.stores.row_conversion import checksummed, fetch_sound, to_checksummed_row
from atoll.server.stores.schema import noise_states


@dataclass(frozen=True)
class NoiseRecord:
    """The state for the release after ``version`` releases; ``body`` is JSON text and holds a secret."""

    run_id: str
    version: int
    body: str = field(repr=False)

    @property
    def title(self) -> str:
        """Name of the record in errors."""
        return f"the noise of run {self.run_id}"

    @property
    def checksum(self) -> str:
        """A checksum over all fields."""
        return checksum_of(self.run_id, self.version, self.body)


def add(connection: Connection, record: NoiseRecord) -> None:
    """Record the initial state of a run.

    Raises:
        RecordConflictError: (from the writer) if the run already has a state.
    """
    connection.execute(insert(noise_states).values(to_checksummed_row(record)))


def find(connection: Connection, run_id: str) -> NoiseRecord | None:
    """A run's state; None for a run without privacy.

    Raises:
        StoreDamagedError: if it was altered on disk.
    """
    query = checksummed(NoiseRecord, noise_states).where(noise_states.c.run_id == run_id)
    return next(iter(fetch_sound(connection, NoiseRecord, query)), None)


def amend(connection: Connection, record: NoiseRecord) -> None:
    """Replace a run's state without a new version, for an operator's decision rather than a release.

    Raises:
        RecordMissingError: if the run has no state of that version.
    """
    standing = (noise_states.c.run_id == record.run_id) & (noise_states.c.version == record.version)
    if connection.execute(update(noise_states).where(standing).values(to_checksummed_row(record))).rowcount != 1:
        raise RecordMissingError("noise", record.run_id)


def advance(connection: Connection, record: NoiseRecord) -> None:
    """Replace a run's state by that of the next version; succeeds once.

    Raises:
        RecordMissingError: if the run has no state.
        RecordConflictError: if the stored state is not that of the preceding version.
    """
    before = (noise_states.c.run_id == record.run_id) & (noise_states.c.version == record.version - 1)
    if connection.execute(update(noise_states).where(before).values(to_checksummed_row(record))).rowcount == 1:
        return
    standing = find(connection, record.run_id)
    if standing is None:
        raise RecordMissingError("noise", record.run_id)
    raise RecordConflictError(
        f"the noise of run {record.run_id} stands at version {standing.version}; it cannot become {record.version}"
    )
