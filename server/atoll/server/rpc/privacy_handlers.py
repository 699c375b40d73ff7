"""The part of ControlService about the privacy ledger."""

from __future__ import annotations

import logging

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy import ledger, ledger_answers
from atoll.server.privacy.events import Adjacency
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.operator_handlers import OperatorHandlers
from atoll.server.rpc.scoping import current_scope
from atoll.server.stores import projects
from atoll.wire.v1 import control_pb2

log = logging.getLogger(__name__)


class PrivacyHandlers(OperatorHandlers):
    """Handlers about populations and their charges."""

    async def ListPopulations(
        self, request: control_pb2.ListPopulationsRequest, context: Context
    ) -> control_pb2.ListPopulationsResponse:
        """List the spending of each population."""
        await self._authenticator.operator(context)
        scope = current_scope()
        if request.population:
            name = scope.population(request.population)
            return control_pb2.ListPopulationsResponse(
                populations=[await self._population(name, verify=request.verify)]
            )
        every = await self._services.reader.run(ledger.names)
        names = [name for name in every if name > request.after and scope.has(projects.of_population(name))]
        shown = names[: ledger_answers.MAX_POPULATIONS]
        return control_pb2.ListPopulationsResponse(
            populations=[await self._population(name, verify=request.verify) for name in shown],
            next=shown[-1] if len(names) > len(shown) else "",
        )

    async def ListCharges(
        self, request: control_pb2.ListChargesRequest, context: Context
    ) -> control_pb2.ListChargesResponse:
        """List charges, in the order of their chain."""
        await self._authenticator.operator(context)
        if not (request.run or (request.population and not request.epsilon)):
            raise InvalidRequestError(
                "privacy.charges",
                "the request names neither run nor population, or asks for epsilon without a run",
                "name a run, or a population without epsilon",
            )
        if request.population:
            request.population = current_scope().population(request.population)
        page = await self._services.reader.run(ledger_answers.read_charges, request)
        return await self._services.call(ledger_answers.charges_page, request, page)

    async def GetParticipantPrivacy(
        self, request: control_pb2.GetParticipantPrivacyRequest, context: Context
    ) -> control_pb2.GetParticipantPrivacyResponse:
        """List a participant's spending, by run and population."""
        await self._authenticator.operator(context)
        found = await self._services.reader.run(ledger_answers.read_participant, request.participant)
        spent = [await self._population(name, verify=True) for name in found.populations]
        return ledger_answers.participant_privacy(found, spent)

    async def LimitPopulation(
        self, request: control_pb2.LimitPopulationRequest, context: Context
    ) -> control_pb2.LimitPopulationResponse:
        """Set or remove a population's limit."""
        operator = await self._authenticator.operator(context)
        given = (request.HasField("epsilon"), request.HasField("delta"))
        if given[0] != given[1]:
            raise InvalidRequestError("privacy.limit", "a limit is an epsilon and a delta", "give both, or neither")
        limit = (request.epsilon, request.delta) if all(given) else None
        current = current_scope()
        changed = await self._services.writer.run(
            lambda connection: ledger.set_limit(
                connection,
                current.population(request.population),
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
        """Summary of one population; if its ledger is damaged, the flaw and the readable part."""
        found = await self._services.reader.run(ledger_answers.read_population, name, verify=verify)
        if found.flaw:
            log.error("%s", found.flaw)
        return await self._services.call(ledger_answers.population_summary, found)


def _adjacency(text: str) -> Adjacency | None:
    try:
        return Adjacency(text) if text else None
    except ValueError:
        remedy = f"one of {', '.join(Adjacency)}"
        raise InvalidRequestError("privacy.limit", f"there is no adjacency {text[:40]!r}", remedy) from None
