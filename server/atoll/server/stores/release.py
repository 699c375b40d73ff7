"""The release of a round: its charge, its model, its row and its event, in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from atoll.server.rounds import RoundKey
from atoll.server.stores import charges, event_log, models, noise_states, reports, rounds
from atoll.server.stores.charges import Charge
from atoll.server.stores.errors import RecordConflictError
from atoll.server.stores.event_log import LoggedEvent
from atoll.server.stores.models import Model
from atoll.server.stores.noise_states import NoiseRecord
from atoll.server.stores.rounds import Round


@dataclass(frozen=True)
class Release:
    """The records that must become durable together when a round is charged.

    ``model`` is None for an evaluate round; ``counted`` names the reports in the sum, as (round, attempt, participant):
    a carried update keeps the key of the round that it was made for. ``folded_at`` has the epoch second at which each
    was added to the sum, where known. ``noise`` replaces the state that drew the noise; None for a run without privacy.
    """

    charge: Charge
    round: Round
    events: Sequence[LoggedEvent]
    model: Model | None = None
    counted: Collection[tuple[int, int, str]] = ()
    folded_at: Mapping[tuple[int, int, str], float] = field(default_factory=dict)
    noise: NoiseRecord | None = None


def record(connection: Connection, release: Release) -> bool:
    """Record a release; returns whether it is new. A repetition after a crash changes nothing.

    Raises:
        RecordConflictError: (also from the writer) if the round was charged for another attempt or model.
    """
    charge = release.charge
    standing = charges.get(connection, charge.run_id, charge.round)
    if standing is not None:
        _require_same(connection, release, standing)
        return False
    charges.add(connection, charge)
    if release.noise is not None:
        noise_states.advance(connection, release.noise)
    if release.model is not None:
        models.add(connection, release.model)
    rounds.put(connection, release.round)
    reports.mark_counted(connection, charge.run_id, release.counted, release.folded_at)
    event_log.append(connection, charge.run_id, release.events)
    return True


def _require_same(connection: Connection, release: Release, standing: Charge) -> None:
    charge = release.charge
    model = models.of_round(connection, charge.run_id, charge.round)
    blob = None if model is None else model.blob
    wanted = None if release.model is None else release.model.blob
    if (standing.attempt, blob) != (charge.attempt, wanted):
        raise RecordConflictError(
            f"run {charge.run_id}: round {RoundKey(charge.round, standing.attempt)} was released with model {blob}; "
            f"it cannot be released again as {RoundKey(charge.round, charge.attempt)} with model {wanted}"
        )
