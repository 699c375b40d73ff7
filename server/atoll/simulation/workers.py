"""User settings: the number of worker processes on this machine, and their shares of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from atoll.simulation.errors import SetupError

MOST_WORKERS = 256


@dataclass(frozen=True)
class Workers:
    """Worker processes, for ``Federation.run(workers=Workers(8, gpus=0.25))``; ``workers=8`` is ``Workers(8)``.

    Args:
        count: number of processes; 0: participants work in this process.
        gpus: GPUs for each, or a share of one: four workers of 0.25 use one GPU together, and PyTorch gives each a
            quarter of its memory. 0: every worker sees all GPUs without a limit.

    Raises:
        SetupError: naming the invalid value.
    """

    count: int
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.count not in range(MOST_WORKERS + 1):
            raise SetupError(f"workers = {self.count}: give 0, for this process, to {MOST_WORKERS}")
        check_gpus("Workers", self.gpus)
        if self.gpus and not self.count:
            raise SetupError(
                f"gpus = {self.gpus:g} is for worker processes: give workers = 1 or more; with workers = 0 the "
                "participants' code chooses its device"
            )

    @classmethod
    def of(cls, given: int | Workers) -> Workers:
        """Convert a number to ``Workers``; other settings are returned unchanged."""
        return given if isinstance(given, Workers) else cls(given)


def check_gpus(kind: str, gpus: float) -> None:
    """Refuse a value that is neither a share of a GPU nor a number of GPUs.

    Raises:
        SetupError: naming the value.
    """
    if not (isfinite(gpus) and gpus >= 0 and (gpus <= 1 or gpus == int(gpus))):
        raise SetupError(f"{kind}(gpus={gpus}): give a share from 0 to 1, or a whole number of GPUs")


def workers_to_a_gpu(gpus: float) -> int:
    """The number of workers with this share, above 0 and at most 1, that fit on one GPU."""
    return int(1 / gpus + 1e-9)
