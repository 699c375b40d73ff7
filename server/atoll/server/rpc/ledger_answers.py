"""What operators are told of the privacy ledger: read from the database, then added up without it.

Each answer is made in two steps, as adding up takes a tenth of a second for each run under PRV and must not keep a
connection. ``rpc.privacy`` asks for a server's operators, ``cli.offline`` for whoever has the data directory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from atoll.server.privacy import ledger
from atoll.server.privacy.chain import first_line, limit_line
from atoll.server.privacy.participation import Part, parts_of, unknown_populations
from atoll.server.privacy.reconciling import population_of_job
from atoll.server.privacy.salvage import line_as_it_stands, remains
from atoll.server.privacy.tally import Tally, parsed_cost
from atoll.server.stores import (
    Charge,
    Population,
    RecordMissingError,
    StoreDamagedError,
    charges,
    participants,
    populations,
    runs,
)
from atoll.server.stores.participants import Participant
from atoll.wire.v1 import control_pb2

MAX_POPULATIONS = 50
MAX_CHARGES = 1000
MAX_WITH_EPSILON = 50
"""Charges of one answer that tells epsilon after each: PRV takes a tenth of a second for one."""
MAX_PARTS = 1000
"""Runs of one participant that are told: the newest."""


@dataclass(frozen=True)
class Standing:
    """A population as it was read; with a ``flaw`` it is what can be read, and ``row`` is None if that is gone."""

    name: str
    row: Population | None
    tally: Tally
    run_names: dict[str, str]
    line: str
    flaw: str = ""


@dataclass(frozen=True)
class Page:
    """Charges of a population (empty for a run without privacy), and for epsilon all of the run before them."""

    population: str
    charges: tuple[Charge, ...] = ()
    before: tuple[Charge, ...] = ()


@dataclass(frozen=True)
class PartsRead:
    """A participant, the runs that it was drawn for, populations of deleted ones."""

    participant: Participant
    parts: tuple[Part, ...]
    unknown: tuple[str, ...]

    @property
    def populations(self) -> list[str]:
        """Those of its runs."""
        return sorted({part.population for part in self.parts[:MAX_PARTS] if part.population})


def read_population(connection: Connection, name: str, *, verify: bool) -> Standing:
    """A population; ``verify`` has all of its chain verified, also what was verified before.

    Raises:
        RecordMissingError: there is none, and nothing names it.
    """
    try:
        row, tally = ledger.tallied(connection, name, afresh=verify)
    except StoreDamagedError as error:
        left = remains(connection, name)
        return Standing(name, left.row, left.tally, _names(connection, left.tally), left.line, error.detail.message)
    return Standing(name, row, tally, _names(connection, tally), first_line(row))


def told_population(found: Standing) -> control_pb2.PopulationSummary:
    """Adds up: takes a tenth of a second for each run under PRV."""
    row = found.row or Population(found.name, "", 0.0, found.tally.charges)
    spent = ledger.told(row, found.tally)
    return control_pb2.PopulationSummary(
        population=found.name,
        adjacency=row.adjacency,
        unit=populations.UNIT,
        created_at=row.created_at,
        epsilon=spent.epsilon,
        delta=spent.delta,
        accountant=spent.accountant,
        limit_epsilon=row.epsilon,
        limit_delta=row.delta,
        limited_by=row.limited_by,
        limited_at=row.limited_at or 0.0,
        charges=found.tally.charges,
        head=row.head,
        runs=[
            control_pb2.RunSpending(
                run=run.run_id,
                name=found.run_names.get(run.run_id, ""),
                epsilon=run.epsilon,
                delta=run.delta,
                accountant=run.accountant,
                target=run.target,
                releases=run.releases,
                first_at=run.first_at,
                last_at=run.last_at,
            )
            for run in spent.runs
        ],
        flaw=found.flaw,
        line=found.line,
        limit_line=limit_line(row),
    )


def most_charges(request: control_pb2.ListChargesRequest) -> int:
    """How many charges an answer to this has at most."""
    most = MAX_WITH_EPSILON if request.epsilon else MAX_CHARGES
    return min(request.limit or most, most)


def read_charges(connection: Connection, request: control_pb2.ListChargesRequest) -> Page:
    """Those wanted, and one more.

    Raises:
        RecordMissingError: there is no such run or population.
    """
    of, limit = request.population or _population_of(connection, request.run), most_charges(request)
    if not of:
        return Page("")
    if of not in ledger.names(connection):
        raise RecordMissingError("population", of)
    run_id = request.run or None
    if request.newest:
        page = charges.newest_of_population(connection, of, run_id=run_id, limit=limit)
    else:
        page = charges.of_population(connection, of, run_id=run_id, start=request.start, limit=limit + 1)
    return Page(of, page, charges.before(connection, page[0]) if request.epsilon and page else ())


def told_charges(request: control_pb2.ListChargesRequest, page: Page) -> control_pb2.ListChargesResponse:
    """Takes as long as ``told_population`` for each charge, if epsilon is wanted."""
    limit = most_charges(request)
    shown = page.charges[:limit]
    after: Sequence[float | None] = [None] * len(shown)
    if request.epsilon:
        with suppress(StoreDamagedError):  # the charge that cannot be read says so, and none what was spent by then
            after = ledger.course(page.before, shown)
    return control_pb2.ListChargesResponse(
        charges=[_charge(charge, epsilon) for charge, epsilon in zip(shown, after, strict=True)],
        next=page.charges[limit].seq if len(page.charges) > limit else None,
        population=page.population,
    )


def read_parts(connection: Connection, participant: str) -> PartsRead:
    """What a participant was part of.

    Raises:
        RecordMissingError: there is no such participant.
    """
    row = participants.get(connection, participant)
    if row is None:
        raise RecordMissingError("participant", participant)
    return PartsRead(row, parts_of(connection, row.id, limit=MAX_PARTS + 1), unknown_populations(connection))


def told_parts(
    found: PartsRead, spent: Sequence[control_pb2.PopulationSummary]
) -> control_pb2.GetParticipantPrivacyResponse:
    """With what was spent of the populations that ``found`` names."""
    return control_pb2.GetParticipantPrivacyResponse(
        participant=found.participant.id,
        organisation=found.participant.organisation,
        runs=[
            control_pb2.ParticipantRun(
                run=part.run_id,
                name=part.name,
                population=part.population,
                drawn=part.drawn,
                counted=part.counted,
                releases=part.releases,
            )
            for part in found.parts[:MAX_PARTS]
        ],
        populations=spent,
        epsilon=math.inf if any(one.flaw for one in spent) else math.fsum(one.epsilon for one in spent),
        delta=math.fsum(one.delta for one in spent),
        unknown=found.unknown,
        truncated=len(found.parts) > MAX_PARTS,
    )


def _names(connection: Connection, tally: Tally) -> dict[str, str]:
    return runs.names(connection, list(tally.runs))


def _population_of(connection: Connection, run_id: str) -> str:
    """That which a run was charged to, or that its job names while it was charged nothing; empty without privacy."""
    return charges.population_of(connection, run_id) or population_of_job(runs.get(connection, run_id).job_toml)


def _charge(charge: Charge, epsilon: float | None) -> control_pb2.ChargeSummary:
    line = line_as_it_stands(charge)
    try:
        cost = parsed_cost(charge)
    except StoreDamagedError as error:
        seq = charge.seq if isinstance(charge.seq, int) else 0
        return control_pb2.ChargeSummary(
            population=charge.population or "", seq=seq, run=charge.run_id, line=line, flaw=error.detail.message
        )
    return control_pb2.ChargeSummary(
        population=charge.population or "",
        seq=charge.seq or 0,
        run=charge.run_id,
        round=charge.round,
        attempt=charge.attempt,
        version=cost.version,
        mechanism=charge.mechanism,
        clip=cost.clip,
        noise_multiplier=None if cost.event is None else cost.event.noise_multiplier,
        sample_rate=0.0 if cost.event is None else cost.event.sample_rate,
        sampling="" if cost.event is None else cost.event.sampling,
        charged_at=charge.charged_at,
        digest=charge.digest or "",
        epsilon_after=epsilon,
        line=line,
    )
