"""The part of ControlService about the audit log."""

from __future__ import annotations

from sqlalchemy import Connection

from atoll.server.control import message_of
from atoll.server.rpc.authentication import Context
from atoll.server.rpc.operator_handlers import OperatorHandlers, page_size
from atoll.server.rpc.scoping import current_scope
from atoll.server.stores import AuditFilter, audit
from atoll.wire.v1 import control_pb2


class AuditHandlers(OperatorHandlers):
    """Handlers about the audit log."""

    async def ListAudit(self, request: control_pb2.ListAuditRequest, context: Context) -> control_pb2.ListAuditResponse:
        """List entries, the newest first; on request with the state of the whole chain."""
        await self._authenticator.operator(context)
        limit = page_size(request.limit)
        chosen = AuditFilter(
            operator=request.operator,
            action=request.action,
            subject=request.subject,
            outcome=request.outcome,
            project=current_scope().project or "",
            since=request.since if request.HasField("since") else None,
            until=request.until if request.HasField("until") else None,
        )

        def work(connection: Connection) -> control_pb2.ListAuditResponse:
            found = audit.listed(connection, chosen, after=request.after, limit=limit)
            answer = control_pb2.ListAuditResponse(
                entries=[message_of(control_pb2.AuditEntry, one) for one in found],
                next=str(found[-1].seq) if len(found) == limit else "",
            )
            if request.verify and chosen.project == "":
                answer.chain.CopyFrom(message_of(control_pb2.AuditChain, audit.verified(connection)))
            return answer

        return await self._services.reader.run(work)
