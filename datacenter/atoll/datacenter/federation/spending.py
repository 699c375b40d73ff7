"""What rounds cost the samples of a silo that trains with ``[privacy]``: charged to the participant's own ledger.

The ledger is the client's (``atoll.client.privacy.ledger``), in the silo's state directory, and rank 0's alone. Steps
are charged before they touch the data. After a restart those that are made again are charged again: parts of what they
had been may have been sent.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.client.errors import ClientError
from atoll.client.privacy.ledger import Ledger, Limit, Release
from atoll.client.privacy.samples import DP_SGD, ledger_path, sample_ledger, steps_of
from atoll.client.task import TaskKind
from atoll.datacenter.errors import CheckpointError, LayoutError
from atoll.datacenter.job.federation import INNER_STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client import Task
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.privacy import Budget

log = logging.getLogger(__name__)

_SAME = 1e-5
"""Relative: noise that two machines have found for the same epsilon."""


def check_spending(job: SiloJob) -> None:
    """Whether a private job can take part.

    Raises:
        LayoutError: if it has no limit, or makes steps that no round has been charged for.
    """
    if job.privacy is None:
        return
    problems = []
    if job.privacy.most is None:
        problems.append(
            "[privacy] in a federation needs a limit, for the server decides how many steps are made: set "
            "privacy.limit to the epsilon that may ever be spent on the data, or privacy.epsilon"
        )
    if job.federation.overlap_steps:
        problems.append(
            f"federation.overlap_steps = {job.federation.overlap_steps} with [privacy]: steps would be made, and their "
            "epsilon spent, before a round has asked for them; set it to 0"
        )
    if problems:
        raise LayoutError(*problems)


@dataclass(frozen=True)
class Spending:
    """Rank 0's account of the silo's data.

    Attributes:
        ledger: of the data set.
        budget: of one step.
        inner_steps: of a round whose server asks for none.
    """

    ledger: Ledger
    budget: Budget
    inner_steps: int

    @classmethod
    def of(cls, job: SiloJob, budget: Budget, state: Path) -> Spending:
        """A private job's, with the ledger in the silo's state directory.

        Raises:
            LayoutError: see ``check_spending``.
            UsageError: if the ledger is damaged.
        """
        check_spending(job)
        section = job.privacy
        if section is None or section.most is None:
            raise ValueError("a job without [privacy] spends nothing")
        limit = Limit(section.most, section.delta)
        ledger = sample_ledger(ledger_path(state, section.data), limit, section.accountant)
        ledger.account()
        return cls(ledger, budget, job.federation.inner_steps)

    def check(self, steps: int) -> None:
        """Whether the ledger knows of all steps that a checkpoint has.

        Raises:
            CheckpointError: if it does not.
        """
        releases = self.ledger.account().releases
        counted = sum(release.count for release in releases if self._is_like(release))
        if counted < steps:
            raise CheckpointError(
                f"the checkpoint has {steps} steps on the data, and {self.ledger.path} has counted {counted} of them: "
                "restore the ledger; or, if the others were made outside a federation, set another checkpoint.folder"
            )

    def objection(self, task: Task) -> str | None:
        """Why the limit does not allow the steps that a task asks for; None if it does."""
        if task.kind is TaskKind.EVALUATE:
            return None
        asked = task.settings.integer(INNER_STEPS, self.inner_steps)
        return self.ledger.objection(self._release(asked)) if asked > 0 else None

    def charge(self, task: Task, steps: int) -> None:
        """Charge steps of a round, durably.

        Raises:
            BudgetSpentError: if the limit does not allow them; nothing is charged then.
            UsageError: if the ledger cannot be written.
        """
        self.ledger.charge(task.key, task.run_name, self._release(steps))

    def settle(self, task: Task, charged: int, made: int) -> None:
        """Of steps that were charged only so many were made, and no others will: take the rest off."""
        try:
            self.ledger.settle(task.key, self._release(charged), made)
        except ClientError as error:
            log.warning("%s: %d steps that were not made stay charged: %s", task.key, charged - made, error)

    def _release(self, steps: int) -> Release:
        return steps_of(self.budget.noise_multiplier, self.budget.sample_rate, steps)

    def _is_like(self, release: Release) -> bool:
        mine = self._release(1)
        return (
            release.mechanism == DP_SGD
            and math.isclose(release.noise_multiplier, mine.noise_multiplier, rel_tol=_SAME)
            and math.isclose(release.sample_rate, mine.sample_rate, rel_tol=_SAME)
        )
