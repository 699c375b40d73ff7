"""Errors of the privacy ledger, a branch of ``atoll.server.errors``.

::

    ServerError
    └── ConflictError
        ├── BudgetSpentError       a round, or what is left of a run, would cost more than was promised
        │   ├── UncomparedError    what is spent is not known: the ledger was restored, and nobody has compared it
        │   └── TooFewReportsError  so few report that releases are paid for in vain
        └── AdjacencyError         a run promises something that cannot be added to what the population was promised
"""

from __future__ import annotations

from typing import ClassVar

from atoll.server.errors import ConflictError


class BudgetSpentError(ConflictError):
    """A round would cost more than the run's target, or than its population's limit; nothing of it was released."""

    code: ClassVar[str] = "privacy.spent"

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(self.code, message, remedy)


class UncomparedError(BudgetSpentError):
    """What was released since the back-up that this ledger is restored from is not charged in it."""

    code: ClassVar[str] = "privacy.restored"

    def __init__(self, run_id: str, restored: str) -> None:
        super().__init__(
            f"the privacy budget of run {run_id} is not known: its ledger was restored from a back-up on {restored}, "
            "and has nothing of what was released since that was made",
            "compare `atoll privacy ledger` with the heads or the export noted last, lower the population's limit by "
            f"what is missing, then `atoll run resume {run_id}`",
        )


class TooFewReportsError(BudgetSpentError):
    """By the noised numbers of reports, less than half of those planned report."""

    code: ClassVar[str] = "privacy.reports"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"less than half of cohort.size report to run {run_id}, as far as noised counts can tell: its next rounds "
            "would cost as much and teach little",
            "see in `atoll run show` whether participants fail or are still at work at the deadline; then either "
            f"`atoll run resume {run_id}`, or submit a job with a longer straggler.report_window_s",
        )


class AdjacencyError(ConflictError):
    """A run's promise is of another kind than those that the population was given before."""

    def __init__(self, population: str, standing: str, wanted: str) -> None:
        super().__init__(
            "privacy.adjacency",
            f"population {population} is accounted for under {standing} adjacency; this run promises {wanted}",
            "draw the cohort as the population's other runs do, or name another population that shares no participants",
        )
