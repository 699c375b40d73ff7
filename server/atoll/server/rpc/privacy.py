"""The part of ControlService that is about the privacy ledger."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from sqlalchemy import Connection

from atoll.server.daemon.services import Services
from atoll.server.errors import InvalidRequestError
from atoll.server.privacy import ledger
from atoll.server.privacy.chain import charge_line, first_line
from atoll.server.privacy.participation import Part, parts_of, unknown_populations
from atoll.server.privacy.tally import parsed_cost
from atoll.server.privacy.values import Adjacency
from atoll.server.rpc.authentication import Authenticator, Context
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
from atoll.wire.v1 import control_pb2

log = logging.getLogger(__name__)

MAX_POPULATIONS = 50
MAX_CHARGES = 1000
MAX_WITH_EPSILON = 50
"""Charges of one answer that tells epsilon after each: PRV takes a tenth of a second for one."""
MAX_PARTS = 1000
"""Runs of one participant that are told: the newest."""


class PrivacyHandlers:
    """Handlers of ``ControlService``; every one needs an operator's certificate."""

    _services: Services
    _authenticator: Authenticator

    async def ListPopulations(
        self, request: control_pb2.ListPopulationsRequest, context: Context
    ) -> control_pb2.ListPopulationsResponse:
        """What has been spent of each."""
        await self._authenticator.operator(context)
        if request.population:
            return control_pb2.ListPopulationsResponse(
                populations=[await self._population(request.population, verify=request.verify)]
            )
        names = [name for name in await self._services.reader.run(populations.names) if name > request.after]
        shown = names[:MAX_POPULATIONS]
        return control_pb2.ListPopulationsResponse(
            populations=[await self._population(name, verify=request.verify) for name in shown],
            next=shown[-1] if len(names) > len(shown) else "",
        )

    async def ListCharges(
        self, request: control_pb2.ListChargesRequest, context: Context
    ) -> control_pb2.ListChargesResponse:
        """Charges, in the order of their chain."""
        await self._authenticator.operator(context)
        if not (request.run or (request.population and not request.epsilon)):
            raise InvalidRequestError(
                "privacy.charges", "a population or a run is wanted, and a run where epsilon is", "name one"
            )
        most = MAX_WITH_EPSILON if request.epsilon else MAX_CHARGES
        limit = min(request.limit or most, most)

        def work(connection: Connection) -> tuple[tuple[Charge, ...], tuple[Charge, ...]]:
            """Those wanted and one more, and for epsilon all of the run before them."""
            of = request.population or charges.population_of(connection, request.run)
            if of is None:
                runs.get(connection, request.run)
                return (), ()
            populations.get(connection, of)
            run_id = request.run or None
            if request.newest:
                page = charges.newest_of_population(connection, of, run_id=run_id, limit=limit)
            else:
                page = charges.of_population(connection, of, run_id=run_id, start=request.start, limit=limit + 1)
            before = charges.before(connection, page[0]) if request.epsilon and page else ()
            return page, before

        page, before = await self._services.reader.run(work)
        shown = page[:limit]
        after: Sequence[float | None] = [None] * len(shown)
        if request.epsilon:
            after = await self._services.call(ledger.course, before, shown)
        return control_pb2.ListChargesResponse(
            charges=[_charge(charge, epsilon) for charge, epsilon in zip(shown, after, strict=True)],
            next=page[limit].seq if len(page) > limit else None,
        )

    async def GetParticipantPrivacy(
        self, request: control_pb2.GetParticipantPrivacyRequest, context: Context
    ) -> control_pb2.GetParticipantPrivacyResponse:
        """What holds for one participant."""
        await self._authenticator.operator(context)

        def work(connection: Connection) -> tuple[participants.Participant, tuple[Part, ...], tuple[str, ...]]:
            row = participants.get(connection, request.participant)
            if row is None:
                raise RecordMissingError("participant", request.participant)
            return row, parts_of(connection, row.id, limit=MAX_PARTS + 1), unknown_populations(connection)

        row, found, unknown = await self._services.reader.run(work)
        parts = found[:MAX_PARTS]
        names = sorted({part.population for part in parts if part.population})
        known = set(await self._services.reader.run(populations.names))
        spent = [await self._population(name, verify=False) for name in names if name in known]
        return control_pb2.GetParticipantPrivacyResponse(
            participant=row.id,
            organisation=row.organisation,
            runs=[
                control_pb2.ParticipantRun(
                    run=part.run_id,
                    name=part.name,
                    population=part.population,
                    drawn=part.drawn,
                    counted=part.counted,
                    releases=part.releases,
                )
                for part in parts
            ],
            populations=spent,
            epsilon=math.inf if any(one.flaw for one in spent) else math.fsum(one.epsilon for one in spent),
            delta=math.fsum(one.delta for one in spent),
            unknown=unknown,
            truncated=len(found) > len(parts),
        )

    async def LimitPopulation(
        self, request: control_pb2.LimitPopulationRequest, context: Context
    ) -> control_pb2.LimitPopulationResponse:
        """Set a population's limit, or take it away."""
        operator = await self._authenticator.operator(context)
        given = (request.HasField("epsilon"), request.HasField("delta"))
        if given[0] != given[1]:
            raise InvalidRequestError("privacy.limit", "a limit is an epsilon and a delta", "give both, or neither")
        limit = (request.epsilon, request.delta) if all(given) else None
        changed = await self._services.writer.run(
            lambda connection: ledger.set_limit(
                connection,
                request.population,
                limit,
                operator=operator,
                now=self._services.clock(),
                adjacency=_adjacency(request.adjacency),
            )
        )
        words = "no limit" if limit is None else f"a limit of epsilon {limit[0]:g} at delta {limit[1]:g}"
        log.info("population %s given %s by operator %s", changed.name, words, operator)
        return control_pb2.LimitPopulationResponse(population=await self._population(changed.name, verify=False))

    async def _population(self, name: str, *, verify: bool) -> control_pb2.PopulationSummary:
        """Of one population; its flaw if its ledger is damaged."""
        try:
            row, tally = await self._services.reader.run(
                lambda connection: ledger.tallied(connection, name, afresh=verify)
            )
        except StoreDamagedError as error:
            log.error("%s", error.logged)  # noqa: TRY400 - a finding, not a failure of this call
            return control_pb2.PopulationSummary(population=name, flaw=error.detail.message)
        found = await self._services.call(ledger.told, row, tally)

        def names(connection: Connection) -> dict[str, str]:
            return runs.names(connection, [run.run_id for run in found.runs])

        return _summary(found, await self._services.reader.run(names))


def _adjacency(text: str) -> Adjacency | None:
    try:
        return Adjacency(text) if text else None
    except ValueError:
        remedy = f"one of {', '.join(Adjacency)}"
        raise InvalidRequestError("privacy.limit", f"there is no adjacency {text[:40]!r}", remedy) from None


def _summary(found: ledger.Spent, names: dict[str, str]) -> control_pb2.PopulationSummary:
    row: Population = found.population
    return control_pb2.PopulationSummary(
        population=row.name,
        adjacency=row.adjacency,
        unit=populations.UNIT,
        created_at=row.created_at,
        epsilon=found.epsilon,
        delta=found.delta,
        accountant=found.accountant,
        limit_epsilon=row.epsilon,
        limit_delta=row.delta,
        limited_by=row.limited_by,
        limited_at=row.limited_at or 0.0,
        charges=row.charges,
        head=row.head,
        runs=[
            control_pb2.RunSpending(
                run=run.run_id,
                name=names.get(run.run_id, ""),
                epsilon=run.epsilon,
                delta=run.delta,
                accountant=run.accountant,
                target=run.target,
                releases=run.releases,
                first_at=run.first_at,
                last_at=run.last_at,
            )
            for run in found.runs
        ],
        line=first_line(row),
    )


def _charge(charge: Charge, epsilon: float | None) -> control_pb2.ChargeSummary:
    cost = parsed_cost(charge)
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
        line=charge_line(charge),
    )
