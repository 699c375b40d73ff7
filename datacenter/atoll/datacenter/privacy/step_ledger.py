"""The ledger of a job with ``[privacy]`` outside a federation: what its steps have cost, on disk.

Rounds of a federation are charged to the same ledger (``atoll.client.silo.Ledger``), so one file can serve both. Blocks
of steps are charged before they touch the data. Steps that are repeated after a crash are charged once: none of their
first results left the silo. A new job is charged again.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from atoll.client.silo import Limit, dp_sgd_release, ledger_path, sample_ledger
from atoll.client.task import RoundKey
from atoll.datacenter.errors import LayoutError

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.client.silo import Release
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.privacy import PrivacySection
    from atoll.datacenter.privacy.budget import Budget

BLOCK = 100
"""Steps that are charged together, with one write to disk. If the process is killed, up to this many steps may be
charged that did not run.
"""


class StepLedger:
    """Rank 0's account of the data that a job trains on.

    Args:
        job: a job with ``[privacy]``.
        budget: cost of its steps.
        folder: folder of the job file.

    Attributes:
        path: file of the ledger.
    """

    def __init__(self, job: SiloJob, budget: Budget, folder: Path) -> None:
        section = _section(job)
        limit = Limit(math.inf if section.limit is None else section.limit, section.delta)
        self.path = ledger_file(section, folder, folder)
        self._ledger = sample_ledger(self.path, limit, section.accountant)
        self._job, self._budget = job, budget
        kept = job.checkpoint.folder
        place = "" if kept is None else hashlib.sha256(str((folder / kept).resolve()).encode()).hexdigest()[:8]
        self._prefix = f"{job.job.name}-{place}-"
        self._run, self._charged, self._before = "", 0, 0

    def begin(self, step: int, *, resumed: bool) -> None:
        """Begin a job, or continue from a step.

        Raises:
            LayoutError: if its limit does not allow the steps that are left.
            UsageError: if the ledger is damaged.
        """
        entries = self._ledger.account().entries
        runs = [entry.run for entry in entries if entry.run.startswith(self._prefix)]
        number = len(set(runs)) + (0 if resumed and runs else 1)
        self._run = f"{self._prefix}{number}"
        release = self._release(1)
        self._charged = sum(entry.release.count for entry in entries if entry.has(self._run, release))
        self._before = self._charged
        left = self._job.job.steps - max(step, self._charged)
        if left > 0 and (objection := self._ledger.objection(self._release(left))) is not None:
            raise LayoutError(
                f"privacy.limit = {self._ledger.limit.epsilon:g} does not allow the job's {left} steps: {objection} "
                f"(the ledger is {self.path})"
            )

    def before(self, step: int) -> None:
        """Charge a step, from 0, durably, unless it is charged already.

        Raises:
            BudgetSpentError: if another job has spent the rest of the limit meanwhile.
            UsageError: if the ledger cannot be written.
        """
        if step < self._charged:
            return
        until = min(step + BLOCK, self._job.job.steps)
        self._ledger.charge(self._key(), self._job.job.name, self._release(until - self._charged))
        self._charged = until

    def end(self, step: int) -> None:
        """Refund charged steps that did not run."""
        made = max(step, self._before)
        if made < self._charged:
            self._ledger.settle(self._key(), self._release(self._charged), made)
            self._charged = made

    def _release(self, steps: int) -> Release:
        return dp_sgd_release(self._budget.noise_multiplier, self._budget.sample_rate, steps)

    def _key(self) -> RoundKey:
        return RoundKey(self._run, 0, 0)


def ledger_file(section: PrivacySection, state: Path, folder: Path) -> Path:
    """Return the file of a data set's ledger.

    Args:
        section: the job's ``[privacy]``.
        state: folder that has it unless the job names a file.
        folder: folder of the job file.
    """
    if section.ledger is not None:
        return folder / section.ledger
    return ledger_path(state, section.data)


def _section(job: SiloJob) -> PrivacySection:
    if job.privacy is None:
        raise ValueError("a job without [privacy] spends nothing")
    return job.privacy
