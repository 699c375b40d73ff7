"""Privacy cost of rounds for the samples of a silo with ``[privacy]``, charged to the participant's own ledger.

The ledger is the client's (``atoll.client.silo.Ledger``), in the silo's state directory; only rank 0 uses it. Steps are
charged before they touch the data. Steps repeated after a restart are charged again, because parts of their first
results may have been sent.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.client.errors import ClientError
from atoll.client.silo import DP_SGD, Ledger, Limit, Release, dp_sgd_release, sample_ledger
from atoll.client.task import TaskKind
from atoll.datacenter.errors import CheckpointError, LayoutError
from atoll.datacenter.job.federation import INNER_STEPS
from atoll.datacenter.privacy.step_ledger import ledger_file

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client import Task
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.privacy import Budget

log = logging.getLogger(__name__)

_SAME = 1e-5
"""Relative difference between the noise that two machines find for the same epsilon."""


def check_spending(job: SiloJob) -> None:
    """Check that a private job can take part.

    Raises:
        LayoutError: if it has no limit, or would run steps before a round has charged them.
    """
    if job.privacy is None:
        return
    problems = []
    if job.privacy.most is None:
        problems.append(
            "[privacy] in a federation needs a limit, because the server decides how many steps run: set "
            "privacy.limit to the epsilon that may ever be spent on the data, or privacy.epsilon"
        )
    if job.federation.overlap_steps:
        problems.append(
            f"federation.overlap_steps = {job.federation.overlap_steps} with [privacy]: steps would run, and their "
            "epsilon spent, before a round asks for them; set it to 0"
        )
    if problems:
        raise LayoutError(*problems)


@dataclass(frozen=True)
class Spending:
    """Rank 0's account of the silo's data.

    Attributes:
        ledger: ledger of the data set.
        budget: budget of one step.
        inner_steps: steps of a round if the server does not set them.
    """

    ledger: Ledger
    budget: Budget
    inner_steps: int

    @classmethod
    def of(cls, job: SiloJob, budget: Budget, state: Path, folder: Path) -> Spending:
        """Return the account of a private job.

        Args:
            job: the job.
            budget: budget of one step.
            state: the silo's state directory, which has the ledger unless the job names a file.
            folder: folder of the job file.

        Raises:
            LayoutError: see ``check_spending``.
            UsageError: if the ledger is damaged.
        """
        check_spending(job)
        section = job.privacy
        if section is None or section.most is None:
            raise ValueError("a job without [privacy] spends nothing")
        limit = Limit(section.most, section.delta)
        ledger = sample_ledger(ledger_file(section, state, folder), limit, section.accountant)
        ledger.account()
        return cls(ledger, budget, job.federation.inner_steps)

    def check(self, steps: int) -> None:
        """Check that the ledger has counted all steps of a checkpoint.

        Raises:
            CheckpointError: if it has not.
        """
        releases = self.ledger.account().releases
        counted = sum(release.count for release in releases if self._is_like(release))
        if counted < steps:
            raise CheckpointError(
                f"the checkpoint has {steps} steps on the data, but {self.ledger.path} has counted {counted} of them: "
                "restore the ledger; or, if `atoll silo train` made the others, set privacy.ledger to the file that "
                "counted them, or another checkpoint.folder"
            )

    def objection(self, task: Task) -> str | None:
        """Return why the limit does not allow the task's steps; None if it does."""
        if task.kind is TaskKind.EVALUATE:
            return None
        asked = task.settings.integer(INNER_STEPS, self.inner_steps)
        return self.ledger.objection(self._release(asked)) if asked > 0 else None

    def charge(self, task: Task, steps: int) -> None:
        """Charge the steps of a round, durably.

        Raises:
            BudgetSpentError: if the limit does not allow them; then nothing is charged.
            UsageError: if the ledger cannot be written.
        """
        self.ledger.charge(task.key, task.run_name, self._release(steps))

    def settle(self, task: Task, charged: int, made: int) -> None:
        """Refund charged steps that did not run and will not run."""
        try:
            self.ledger.settle(task.key, self._release(charged), made)
        except ClientError as error:
            log.warning("%s: %d steps that did not run remain charged: %s", task.key, charged - made, error)

    def _release(self, steps: int) -> Release:
        return dp_sgd_release(self.budget.noise_multiplier, self.budget.sample_rate, steps)

    def _is_like(self, release: Release) -> bool:
        mine = self._release(1)
        return (
            release.mechanism == DP_SGD
            and math.isclose(release.noise_multiplier, mine.noise_multiplier, rel_tol=_SAME)
            and math.isclose(release.sample_rate, mine.sample_rate, rel_tol=_SAME)
        )
