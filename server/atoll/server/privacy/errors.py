"""Errors of the privacy ledger, a branch of ``atoll.server.errors``.

::

    ServerError
    └── ConflictError
        ├── BudgetSpentError       a round, or what is left of a run, would cost more than was promised
        └── AdjacencyError         a run promises something that cannot be added to what the population was promised
"""

from __future__ import annotations

from atoll.server.errors import ConflictError


class BudgetSpentError(ConflictError):
    """A round would cost more than the run's target, or than its population's limit; nothing of it was released."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__("privacy.spent", message, remedy)


class AdjacencyError(ConflictError):
    """A run's promise is of another kind than those that the population was given before."""

    def __init__(self, population: str, standing: str, wanted: str) -> None:
        super().__init__(
            "privacy.adjacency",
            f"population {population} is accounted for under {standing} adjacency; this run promises {wanted}",
            "draw the cohort as the population's other runs do, or name another population that shares no participants",
        )
