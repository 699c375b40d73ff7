"""Projects and their quotas as frozen values."""

from __future__ import annotations

from dataclasses import dataclass


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
