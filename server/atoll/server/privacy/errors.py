"""Errors of the privacy ledger, a branch of ``atoll.server.errors``.

::

    ServerError
    └── ConflictError
        ├── BudgetSpentError       a round, or the rest of a run, would cost more than was promised
        │   ├── UncomparedError    the ledger was restored from a backup and has not been compared since
        │   └── TooFewReportsError  so few members report that releases would be wasted
        └── AdjacencyError         a run's promise and its population's cannot be composed
"""

from __future__ import annotations

from typing import ClassVar

from atoll.server.errors import ConflictError


class BudgetSpentError(ConflictError):
    """A round would cost more than the run's target or its population's limit allows; nothing was released."""

    code: ClassVar[str] = "privacy.spent"

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(self.code, message, remedy)


class UncomparedError(BudgetSpentError):
    """The ledger was restored from a backup and lacks the charges of later releases."""

    code: ClassVar[str] = "privacy.restored"

    def __init__(self, run_id: str, restored: str) -> None:
        super().__init__(
            f"the privacy budget of run {run_id} is not known: its ledger was restored from a backup on {restored}, "
            "and lacks all later releases",
            "compare `atoll privacy ledger` with the heads or the export noted last, lower the population's limit by "
            f"what is missing, then `atoll run resume {run_id}`",
        )


class TooFewReportsError(BudgetSpentError):
    """According to the noised counts, less than half of the planned members report."""

    code: ClassVar[str] = "privacy.reports"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"less than half of cohort.size report to run {run_id}, as far as noised counts can tell: its next rounds "
            "would cost as much and teach little",
            "see in `atoll run show` whether participants fail or are still at work at the deadline; then either "
            f"`atoll run resume {run_id}`, or submit a job with a longer straggler.report_window_s",
        )


class AdjacencyError(ConflictError):
    """A run promises an adjacency that differs from that of its population's earlier runs."""

    def __init__(self, population: str, standing: str, wanted: str) -> None:
        super().__init__(
            "privacy.adjacency",
            f"population {population} is accounted for under {standing} adjacency; this run promises {wanted}",
            "name another population; if the runs protect the same unit, one that shares no participants",
        )
