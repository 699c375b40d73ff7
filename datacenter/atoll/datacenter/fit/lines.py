"""Lines that ``fit`` prints besides records of steps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.plan.automatic import Chosen


@dataclass(frozen=True)
class Lines:
    """Prints on standard error.

    Attributes:
        shown: whether anything is printed: on rank 0, if progress is wanted.
    """

    shown: bool

    def planned(self, chosen: Chosen) -> None:
        """Print the layout that was chosen."""
        self._print(f"layout: {chosen.layout.describe()} ({chosen.reason})")

    def resumed(self, job: SiloJob, step: int) -> None:
        """Print from which checkpoint the job continues, or that it has no step left."""
        folder, steps = job.checkpoint.folder, job.job.steps
        if step < steps:
            self._print(f"continues after step {step} of {folder}")
        else:
            self._print(f"nothing is left to train: {folder} has step {step}, and steps = {steps}")

    def written(self, out: Path | None) -> None:
        """Print where the trained model was written; nothing if it was not."""
        if out is not None:
            self._print(f"the trained model is in {out}")

    def _print(self, line: str) -> None:
        if self.shown:
            sys.stderr.write(f"{line}\n")
