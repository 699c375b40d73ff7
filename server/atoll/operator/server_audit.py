"""The audit log of a server, by calls to it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

from atoll.operator.errors import NotPermittedError, require_count
from atoll.server.control import AuditChain, AuditEntry, value_of, values_of
from atoll.wire.v1 import control_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.operator.calls import Calls
    from atoll.wire.v1.control_pb2_grpc import ControlServiceStub

Outcome = Literal["", "done", "refused", "failed", "interrupted"]


class ServerAudit:
    """Queries of a server's audit log."""

    _calls: Calls
    _control: ControlServiceStub

    def audit(  # filters, each by name
        self,
        limit: int | None = None,
        *,
        operator: str = "",
        action: str = "",
        subject: str = "",
        outcome: Outcome = "",
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[AuditEntry]:
        """Actions of operators, newest first; page by page.

        Args:
            limit: maximum number of entries; None: all that are kept.
            operator: only this operator's.
            action: only this action, such as ``run.cancel``, or a prefix such as ``run``.
            subject: only entries about this, such as a run's id.
            outcome: only entries with this outcome.
            since: epoch seconds: only later ones.
            until: epoch seconds: only earlier ones.
        """
        require_count("limit", limit or 0)
        request = control_pb2.ListAuditRequest(
            limit=limit or 0,
            operator=operator,
            action=action,
            subject=subject,
            outcome=outcome,
            since=since,
            until=until,
        )
        answers = self._calls.pages(self._control.ListAudit, request)
        return itertools.islice((one for answer in answers for one in values_of(AuditEntry, answer.entries)), limit)

    def audit_chain(self) -> AuditChain:
        """Make the server verify its whole audit log.

        Raises:
            NotPermittedError: with a role in single projects only, or if this client names a project.
        """
        request = control_pb2.ListAuditRequest(limit=1, verify=True)
        answer = self._calls.call(self._control.ListAudit, request, self._calls.timeouts.ledger_s)
        if not answer.HasField("chain"):
            raise NotPermittedError(
                "the audit log is verified as a whole: by operators with a role in all projects, with no project named",
                "leave --project and ATOLL_PROJECT out (atoll project use --none), or ask who has such a role",
            )
        return value_of(AuditChain, answer.chain)
