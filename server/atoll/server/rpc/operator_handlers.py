"""The base class of the parts of ControlService."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atoll.server.access.audit_log import OperatorDownloads
from atoll.server.access.certificates import CertificateBook
from atoll.server.access.join_tokens import JoinTokens
from atoll.server.access.operators import Operators
from atoll.server.access.project_book import ProjectBook
from atoll.server.rpc.authentication import Authenticator
from atoll.server.rpc.scoping import Scope
from atoll.server.runs.coordinator import Coordinator
from atoll.server.runs.services import Services
from atoll.server.telemetry.recent_log import RecentLog

MAX_LISTED = 1000
"""Maximum number of rows in one answer; the answer has the start of the next page."""


@dataclass(frozen=True)
class ServerFacts:
    """Facts that are shown to operators; addresses are host:port, and new tokens point to ``enrolment_address``.

    ``certificate_names`` are the host names in the server's certificate, ``server_names`` those of all known servers.
    ``gateways`` has the enrolment address of each connected aggregator, by id. The last two change over time.
    """

    started_at: float
    workers: int
    data: Path
    enrolment_address: str
    certificate_names: tuple[str, ...] = ()
    gateways: Mapping[str, str] = field(default_factory=dict)
    server_names: Collection[str] = ()


@dataclass(frozen=True)
class Access:
    """Access to the server: certificates, join tokens, operators, and their projects."""

    certificates: CertificateBook
    tokens: JoinTokens
    operators: Operators
    projects: ProjectBook


class OperatorHandlers:
    """Base of the handlers of ``ControlService``; each handler requires an operator's certificate."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        access: Access,
        services: Services,
        authenticator: Authenticator,
        facts: ServerFacts,
        recent_log: RecentLog,
        downloads: OperatorDownloads,
    ) -> None:
        self._coordinator = coordinator
        self._certificates = access.certificates
        self._tokens = access.tokens
        self._operators = access.operators
        self._book = access.projects
        self._services = services
        self._authenticator = authenticator
        self._facts = facts
        self._recent_log = recent_log
        self._downloads = downloads

    def _connected(self, scope: Scope) -> int:
        """Number of connected participants in the call's scope."""
        sessions = self._services.sessions
        if scope.project is None:
            return len(sessions)
        there = sessions.of(scope.project)
        return there.count_of(scope.organisation) if scope.organisation else len(there)


def page_size(asked: int) -> int:
    """Number of rows in one answer, given the requested number; 0 requests the maximum."""
    return min(asked or MAX_LISTED, MAX_LISTED)
