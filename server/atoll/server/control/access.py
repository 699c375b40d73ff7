"""Participants, join tokens, operators and projects as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProjectRoleSummary:
    """A role in one project; with an ``organisation`` only for its participants and join tokens."""

    project: str
    role: str
    organisation: str


@dataclass(frozen=True)
class OperatorSummary:
    """An operator; ``certificates`` counts the valid ones, and ``revoked_at`` is None while there is one.

    ``role`` is its role in all projects, unspecified if it only has roles in single ``projects``.
    """

    name: str
    issued_at: float
    expires_at: float
    certificates: int
    revoked_at: float | None
    revoked_reason: str
    role: str
    projects: tuple[ProjectRoleSummary, ...] = ()


@dataclass(frozen=True)
class Myself:
    """The caller's identity as seen by the server.

    Attributes:
        name: its name in the audit log.
        role: viewer, operator, privacy_officer or administrator, in the project or in all; unspecified if it has none
            there.
        credential: how the caller proved its name.
        actions: the actions that the caller may perform in the project, or in all, as named in the audit log.
        project: the project of the calls; empty for all.
        projects: roles in single projects.
        server_role: in all projects and for the server as a whole; unspecified: in single projects only.
        server_actions: what it allows that is about the server as a whole.
    """

    name: str
    role: str
    credential: str
    actions: tuple[str, ...]
    project: str = ""
    projects: tuple[ProjectRoleSummary, ...] = ()
    server_role: str = "unspecified"
    server_actions: tuple[str, ...] = ()

    def may(self, action: str) -> bool:
        """Whether the caller may perform an action, such as ``run.cancel`` or ``storage.prune``."""
        return action in self.actions or action in self.server_actions


@dataclass(frozen=True)
class OperatorCertificate:
    """A new certificate for an operator's key, and the federation's authority certificate."""

    certificate_pem: bytes
    ca_certificate_pem: bytes
    expires_at: float


@dataclass(frozen=True)
class RevokedOperator:
    """A revoked operator, and the number of its unused join tokens that became void."""

    operator: OperatorSummary
    voided_tokens: int


@dataclass(frozen=True)
class TokenSummary:
    """A join token, without its secret.

    Attributes:
        used_by: the participant that spent it, or empty.
        created_by: the operator who made it.
    """

    token_id: str
    organisation: str
    kind: str
    created_at: float
    expires_at: float
    used_by: str
    created_by: str
    project: str = ""


@dataclass(frozen=True)
class NewTokens:
    """New join tokens, which are shown only once, because only hashes are stored."""

    tokens: tuple[str, ...] = field(repr=False)
    expires_at: float


@dataclass(frozen=True)
class ParticipantSummary:
    """An enrolled participant; ``kind`` is edge or silo, ``examples`` the weight that it declares."""

    participant: str
    organisation: str
    kind: str
    enrolled_at: float
    last_seen_at: float | None
    revoked_at: float | None
    connected: bool
    examples: int
    times_selected: int
    times_reported: int
    labels: Mapping[str, str]
    project: str = ""


@dataclass(frozen=True)
class ProjectQuota:
    """Quotas of a project; None for unlimited.

    Attributes:
        runs: maximum number of runs that have not ended.
        participants: maximum number of unrevoked participants, including those that unused join tokens may admit.
        model_bytes: maximum bytes of models and optimiser states.
    """

    runs: int | None = None
    participants: int | None = None
    model_bytes: int | None = None


@dataclass(frozen=True)
class ProjectSummary:
    """A project, its quotas and their current use, as far as the caller may see them.

    ``closed_at`` is None while it is open. For a caller whose role is for one organisation, ``runs``,
    ``model_bytes`` and all of ``quota`` are None, and the participants are of that organisation.
    """

    project: str
    created_at: float
    created_by: str
    closed_at: float | None
    quota: ProjectQuota
    runs: int | None
    participants: int
    connected: int
    model_bytes: int | None


@dataclass(frozen=True)
class ClosedProject:
    """A closed project, and the number of its unused join tokens that became void."""

    project: ProjectSummary
    voided_tokens: int
