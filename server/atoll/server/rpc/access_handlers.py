"""The part of ControlService about access: join tokens, participants, operators."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import Connection

from atoll.server.access.role_changes import Given
from atoll.server.access.role_checks import organisation_error
from atoll.server.errors import InvalidRequestError
from atoll.server.identity import Bound, OperatorRole, ParticipantKind, Peer
from atoll.server.rpc import views
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.binding import Binding, bound_through, hosts_of
from atoll.server.rpc.enrolment import KINDS
from atoll.server.rpc.operations import OPERATOR_ROLES, ROLE_NUMBERS, actions_of, server_actions_of
from atoll.server.rpc.operator_handlers import OperatorHandlers, page_size
from atoll.server.rpc.scoping import Scope, current_scope
from atoll.server.runs.coordinator import MAX_REASON_CHARS
from atoll.server.stores import history, participants, projects, tokens
from atoll.server.stores.paging import mark
from atoll.server.telemetry.refusal_log import one_line
from atoll.wire.v1 import control_pb2

log = logging.getLogger(__name__)

MAX_TOKENS = 1000
_KINDS = {number: kind for kind, number in KINDS.items()}


class AccessHandlers(OperatorHandlers):
    """Handlers about join tokens, participants and operators."""

    async def CreateToken(
        self, request: control_pb2.CreateTokenRequest, context: Context
    ) -> control_pb2.CreateTokenResponse:
        """Mint one-time join tokens."""
        operator = await self._authenticator.operator(context)
        kind = _KINDS.get(request.kind)
        if kind is None or not 1 <= request.count <= MAX_TOKENS:
            raise InvalidRequestError(
                "token.request",
                f"kind {request.kind} (edge, silo or aggregator), count {request.count} (1 to {MAX_TOKENS})",
                "name a kind, and a count within the bounds",
            )
        scope = current_scope()
        if scope.organisation not in ("", request.organisation):
            raise organisation_error(operator, scope.organisation, scope.place)
        if scope.organisation and kind is ParticipantKind.AGGREGATOR:
            raise organisation_error(operator, scope.organisation, scope.place)
        binding = await self._binding(request, kind, scope.place)
        made = await self._tokens.create(
            request.organisation,
            kind,
            lifetime_s=request.lifetime_s,
            count=request.count,
            operator=operator,
            address=binding.address,
            bound=Bound(binding.hosts, binding.through, scope.place),
            shows_counts=not scope.organisation,
        )
        return control_pb2.CreateTokenResponse(
            tokens=[token.encode() for token in made], expires_at=self._services.clock() + request.lifetime_s
        )

    async def _binding(self, request: control_pb2.CreateTokenRequest, kind: ParticipantKind, project: str) -> Binding:
        """The address where the holders of new tokens enrol, and the bindings of the tokens.

        Raises:
            InvalidRequestError: if the request contradicts itself or its kind, or its aggregator is not connected.
        """
        servers = (*self._facts.certificate_names, *self._facts.server_names)
        hosts = hosts_of(request.hosts, kind, through=request.through, server_names=servers)
        if not request.through:
            return Binding(self._facts.enrolment_address, hosts, "")
        found = await self._services.reader.run(participants.aggregators, project, request.through)
        return bound_through(request.through, [row.id for row in found], self._facts.gateways)

    async def ListTokens(
        self, request: control_pb2.ListTokensRequest, context: Context
    ) -> control_pb2.ListTokensResponse:
        """List join tokens, without their secrets."""
        await self._authenticator.operator(context)
        limit, after, unused = page_size(request.limit), request.after, request.unused
        scope = current_scope()
        found = await self._services.reader.run(
            tokens.listed,
            project=scope.project,
            after=after,
            limit=limit,
            unused=unused,
            organisation=scope.organisation,
        )
        return control_pb2.ListTokensResponse(
            tokens=[views.token_summary(record) for record in found],
            next=mark(found[-1].created_at, found[-1].id) if len(found) == limit else "",
        )

    async def VoidTokens(
        self, request: control_pb2.VoidTokensRequest, context: Context
    ) -> control_pb2.VoidTokensResponse:
        """Void unused join tokens."""
        operator = await self._authenticator.operator(context)
        if bool(request.token_ids) == bool(request.created_by) or len(request.token_ids) > MAX_TOKENS:
            raise InvalidRequestError(
                "token.which",
                f"{len(request.token_ids)} tokens (at most {MAX_TOKENS}), made by {request.created_by[:80]!r}",
                "name either tokens, or the operator who made them",
            )
        scope = current_scope()
        voided = await self._tokens.void(
            request.token_ids, request.created_by, project=scope.project, organisation=scope.organisation
        )
        log.info("%d join tokens voided by operator %s", voided, operator)
        return control_pb2.VoidTokensResponse(voided=voided)

    async def ListParticipants(
        self, request: control_pb2.ListParticipantsRequest, context: Context
    ) -> control_pb2.ListParticipantsResponse:
        """List enrolled participants, in order of id."""
        await self._authenticator.operator(context)
        scope = current_scope()
        limit, after, organisation = page_size(request.limit), request.after, request.organisation
        if scope.organisation:
            if organisation not in ("", scope.organisation):
                raise organisation_error(scope.operator, scope.organisation, scope.place)
            organisation = scope.organisation
        sessions = self._services.sessions if scope.project is None else self._services.sessions.of(scope.project)
        gateways = await self._services.reader.run(projects.of_participants, tuple(self._facts.gateways))
        connected = {*sessions.names(), *(name for name, project in gateways.items() if scope.has(project))}
        there = sorted(name for name in connected if name > after)[:limit] if request.connected else None

        def work(
            connection: Connection,
        ) -> tuple[Sequence[participants.Participant], dict[str, history.ParticipantHistory]]:
            if there is None:
                found = participants.listed(
                    connection, project=scope.project, after=after, limit=limit, organisation=organisation
                )
            else:
                known = participants.of(connection, there).values()
                found = tuple(row for row in known if organisation in ("", row.organisation) and scope.has(row.project))
            return found, history.of(connection, [row.id for row in found])

        found, histories = await self._services.reader.run(work)
        now = self._services.clock()
        names = there if there is not None else [row.id for row in found]
        return control_pb2.ListParticipantsResponse(
            participants=[
                views.participant_summary(row, histories.get(row.id), connected_at=now if row.id in connected else None)
                for row in sorted(found, key=lambda row: row.id)
            ],
            next=names[-1] if len(names) == limit else "",
        )

    async def RevokeParticipant(
        self, request: control_pb2.RevokeParticipantRequest, context: Context
    ) -> control_pb2.RevokeParticipantResponse:
        """Revoke a participant, at once."""
        operator = await self._authenticator.operator(context)
        row = await self._coordinator.revoke(request.participant, request.reason or "revoked by the operator")
        log.info(
            "participant %s revoked by operator %s: %s",
            row.id,
            operator,
            one_line(request.reason) or "no reason given",
            extra={"participant": row.id},
        )
        return control_pb2.RevokeParticipantResponse(participant=views.participant_summary(row, None))

    async def CreateOperator(
        self, request: control_pb2.CreateOperatorRequest, context: Context
    ) -> control_pb2.CreateOperatorResponse:
        """Certify an operator's key."""
        await self._authenticator.operator(context)
        caller = await self._authenticator.identify(context)
        role = None if request.role == control_pb2.OPERATOR_ROLE_UNSPECIFIED else _role(request.role)
        pem = await self._operators.create(
            request.name,
            request.csr_pem,
            lifetime_s=request.lifetime_s,
            by=caller,
            role=role,
            project=current_scope().project,
            organisation=request.organisation,
        )
        return control_pb2.CreateOperatorResponse(
            certificate_pem=pem,
            ca_certificate_pem=self._certificates.ca_certificate_pem,
            expires_at=Peer.from_pem(pem).not_after,
        )

    async def SetOperatorRole(
        self, request: control_pb2.SetOperatorRoleRequest, context: Context
    ) -> control_pb2.SetOperatorRoleResponse:
        """Give an operator another role."""
        await self._authenticator.operator(context)
        caller = await self._authenticator.identify(context)
        scope = current_scope()
        role = None if request.role == control_pb2.OPERATOR_ROLE_UNSPECIFIED else _role(request.role)
        given = Given(request.name, role, scope.project, request.organisation)
        changed = await self._operators.set_role(given, by=caller)
        return control_pb2.SetOperatorRoleResponse(operator=views.operator_summary(changed, scope.project))

    async def WhoAmI(self, request: control_pb2.WhoAmIRequest, context: Context) -> control_pb2.WhoAmIResponse:
        """Describe the caller and its permissions."""
        await self._authenticator.operator(context)
        caller = await self._authenticator.identify(context)
        scope = current_scope()
        everywhere = scope.rights.everywhere
        return control_pb2.WhoAmIResponse(
            name=caller.name,
            role=_number(scope.role),
            credential=self._authenticator.credential(context),
            actions=await self._actions(scope),
            project=scope.project or "",
            projects=views.project_roles(scope.rights, None),
            server_role=_number(everywhere),
            server_actions=() if everywhere is None else server_actions_of(everywhere),
        )

    async def _actions(self, scope: Scope) -> tuple[str, ...]:
        """The actions that the caller may perform in the project of its call, or in all."""
        if scope.role is None:
            return ()
        closed = bool(scope.project) and (await self._book.get(scope.place)).closed_at is not None
        return actions_of(scope.role, of_organisation=bool(scope.organisation), closed=closed)

    async def ListOperators(
        self, request: control_pb2.ListOperatorsRequest, context: Context
    ) -> control_pb2.ListOperatorsResponse:
        """List operators, in order of name."""
        await self._authenticator.operator(context)
        project = current_scope().project
        found = await self._operators.listed()
        return control_pb2.ListOperatorsResponse(
            operators=[
                views.operator_summary(one, project)
                for one in found
                if project is None or project in one.rights.projects
            ]
        )

    async def RevokeOperator(
        self, request: control_pb2.RevokeOperatorRequest, context: Context
    ) -> control_pb2.RevokeOperatorResponse:
        """Revoke an operator, at once."""
        await self._authenticator.operator(context)
        caller = await self._authenticator.identify(context)
        reason = one_line(request.reason, MAX_REASON_CHARS) or "revoked by an operator"
        project = current_scope().project
        done = await self._operators.revoke(request.name, reason, by=caller, project=project)
        return control_pb2.RevokeOperatorResponse(
            operator=views.operator_summary(done.operator, project), voided_tokens=done.voided_tokens
        )


def _number(role: OperatorRole | None) -> control_pb2.OperatorRole.ValueType:
    return control_pb2.OPERATOR_ROLE_UNSPECIFIED if role is None else ROLE_NUMBERS[role]


def _role(number: int) -> OperatorRole:
    found = OPERATOR_ROLES.get(number)
    if found is None:
        known = ", ".join(role.words for role in OperatorRole)
        raise InvalidRequestError("operator.role_name", f"there is no role of operators {number}", f"one of {known}")
    return found
