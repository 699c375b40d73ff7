"""Answers about the ledger for operators: first read from the database, then added up without it.

There are two steps because adding up takes a tenth of a second for each run under PRV and must not hold a connection.
``rpc.privacy_handlers`` answers from a running server, ``cli.offline`` from a data directory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from atoll.server.control import message_of
from atoll.server.privacy import ledger
from atoll.server.privacy.chain import first_line, limit_line, line_as_it_stands
from atoll.server.privacy.participant_runs import Part, parts_of, unknown_populations
from atoll.server.privacy.reconciling import population_of_job
from atoll.server.privacy.salvage import remains
from atoll.server.privacy.tally import Tally, parsed_cost
from atoll.server.stores import (
    Charge,
    Population,
    RecordMissingError,
    StoreDamagedError,
    charges,
    participants,
    runs,
)
from atoll.server.stores.participants import Participant
from atoll.wire.v1 import control_pb2

MAX_POPULATIONS = 50
MAX_CHARGES = 1000
MAX_WITH_EPSILON = 50
"""Maximum number of charges in an answer that shows epsilon after each; PRV takes a tenth of a second for one."""
MAX_PARTS = 1000
"""Maximum number of runs in an answer about one participant; the newest are shown."""


@dataclass(frozen=True)
class PopulationStanding:
    """A population as read. With a ``flaw``, only its readable part; ``row`` is None if it is lost."""

    name: str
    row: Population | None
    tally: Tally
    run_names: dict[str, str]
    line: str
    flaw: str = ""


@dataclass(frozen=True)
class Page:
    """A page of a population's charges. ``before`` has all earlier charges of the run, which epsilon needs.

    ``population`` is empty for a run without privacy.
    """

    population: str
    charges: tuple[Charge, ...] = ()
    before: tuple[Charge, ...] = ()


@dataclass(frozen=True)
class ParticipantParts:
    """A participant, its part in the runs that drew it, and the populations of deleted runs."""

    participant: Participant
    parts: tuple[Part, ...]
    unknown: tuple[str, ...]

    @property
    def populations(self) -> list[str]:
        """The populations of its runs."""
        return sorted({part.population for part in self.parts[:MAX_PARTS] if part.population})


def read_population(connection: Connection, name: str, *, verify: bool) -> PopulationStanding:
    """Read a population; ``verify`` verifies its whole chain, including parts that were verified before.

    Raises:
        RecordMissingError: if there is no such population, and no run or charge names it.
    """
    try:
        row, tally = ledger.tallied(connection, name, afresh=verify)
    except StoreDamagedError as error:
        left = remains(connection, name)
        return PopulationStanding(
            name, left.row, left.tally, _names(connection, left.tally), left.line, error.detail.message
        )
    return PopulationStanding(name, row, tally, _names(connection, tally), first_line(row))


def population_summary(found: PopulationStanding) -> control_pb2.PopulationSummary:
    """Add up a population: a tenth of a second for each run under PRV."""
    row = found.row or Population(found.name, "", 0.0, found.tally.charges)
    spent = ledger.spent_by(row, found.tally)
    return message_of(
        control_pb2.PopulationSummary,
        spent,
        row,
        population=found.name,
        unit=row.unit,
        delta=spent.delta,
        limit_epsilon=row.epsilon,
        limit_delta=row.delta,
        charges=found.tally.charges,
        runs=[
            message_of(control_pb2.RunSpending, run, run=run.run_id, name=found.run_names.get(run.run_id, ""))
            for run in spent.runs
        ],
        flaw=found.flaw,
        line=found.line,
        limit_line=limit_line(row),
    )


def most_charges(request: control_pb2.ListChargesRequest) -> int:
    """Maximum number of charges in the answer."""
    most = MAX_WITH_EPSILON if request.epsilon else MAX_CHARGES
    return min(request.limit or most, most)


def read_charges(connection: Connection, request: control_pb2.ListChargesRequest) -> Page:
    """Read the requested charges, and one more if another page follows.

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


def charges_page(request: control_pb2.ListChargesRequest, page: Page) -> control_pb2.ListChargesResponse:
    """Build the answer; with epsilon, each charge takes as long as ``population_summary``."""
    limit = most_charges(request)
    shown = page.charges[:limit]
    after: Sequence[float | None] = [None] * len(shown)
    if request.epsilon:
        with suppress(StoreDamagedError):  # the unreadable charge reports its flaw; epsilon after it is unknown
            after = ledger.epsilon_course(page.before, shown)
    return control_pb2.ListChargesResponse(
        charges=[_charge(charge, epsilon) for charge, epsilon in zip(shown, after, strict=True)],
        next_seq=page.charges[limit].seq if len(page.charges) > limit else None,
        population=page.population,
    )


def read_participant(connection: Connection, participant: str) -> ParticipantParts:
    """Read a participant's part in every run.

    Raises:
        RecordMissingError: there is no such participant.
    """
    row = participants.get(connection, participant)
    if row is None:
        raise RecordMissingError("participant", participant)
    return ParticipantParts(
        row, parts_of(connection, row.id, limit=MAX_PARTS + 1), unknown_populations(connection, row.project)
    )


def participant_privacy(
    found: ParticipantParts, spent: Sequence[control_pb2.PopulationSummary]
) -> control_pb2.GetParticipantPrivacyResponse:
    """Build the answer, given the spending of the populations in ``found``."""
    shown = found.parts[:MAX_PARTS]
    return control_pb2.GetParticipantPrivacyResponse(
        participant=found.participant.id,
        organisation=found.participant.organisation,
        runs=[message_of(control_pb2.ParticipantRun, part, run=part.run_id) for part in shown],
        populations=spent,
        epsilon=math.inf if any(one.flaw for one in spent) else math.fsum(one.epsilon for one in spent),
        delta=math.fsum(one.delta for one in spent),
        unprotected=[part.run_id for part in shown if part.counted and not part.population],
        unknown=found.unknown,
        truncated=len(found.parts) > MAX_PARTS,
    )


def _names(connection: Connection, tally: Tally) -> dict[str, str]:
    return runs.names(connection, list(tally.runs))


def _population_of(connection: Connection, run_id: str) -> str:
    """The population that a run is charged to, taken from its job before the first charge; empty without privacy."""
    charged = charges.population_of(connection, run_id)
    if charged:
        return charged
    run = runs.get(connection, run_id)
    return population_of_job(run.job_toml, run.project)


def _charge(charge: Charge, epsilon: float | None) -> control_pb2.ChargeSummary:
    line = line_as_it_stands(charge)
    try:
        cost = parsed_cost(charge)
    except StoreDamagedError as error:
        seq = charge.seq if isinstance(charge.seq, int) else 0
        return control_pb2.ChargeSummary(
            population=charge.population or "", seq=seq, run=charge.run_id, line=line, flaw=error.detail.message
        )
    return message_of(
        control_pb2.ChargeSummary,
        charge,
        cost,
        run=charge.run_id,
        noise_multiplier=None if cost.event is None else cost.event.noise_multiplier,
        sample_rate=None if cost.event is None else cost.event.sample_rate,
        sampling=None if cost.event is None else cost.event.sampling,
        epsilon_after=epsilon,
        line=line,
        flaw="",
    )
