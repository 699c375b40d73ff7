"""User settings: the number of workers on Ray and their resources."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from atoll.simulation.errors import SetupError
from atoll.simulation.workers import check_gpus

MOST = 4096
START_S = 300.0


@dataclass(frozen=True)
class RayWorkers:
    """Workers that are Ray actors, for ``Federation.run(workers=RayWorkers(8, gpus=0.25))``.

    Args:
        count: number of workers; None: as many as the cluster has room for.
        cpus: cores that Ray reserves for each; limits the number of workers, not their use of cores.
        gpus: GPUs for each, or a share of one: four workers of 0.25 use one GPU together, and PyTorch gives each a
            quarter of its memory.
        address: of a cluster, as for ``ray.init``. None: the cluster that the script has joined or ``RAY_ADDRESS``
            names; otherwise Ray is started on this machine for the run, without its dashboard and with a token.
        start_s: time for all workers, or a replacement, to start, in seconds.

    Raises:
        SetupError: naming the invalid value.
    """

    count: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    address: str | None = None
    start_s: float = START_S

    def __post_init__(self) -> None:
        if self.count is not None and not 1 <= self.count <= MOST:
            raise SetupError(f"RayWorkers(count={self.count}): give 1 to {MOST}, or None for as many as there is room")
        if not (isfinite(self.cpus) and self.cpus > 0):
            raise SetupError(f"RayWorkers(cpus={self.cpus}): give a number above 0, a share of a core or whole cores")
        check_gpus("RayWorkers", self.gpus)
        if not (isfinite(self.start_s) and self.start_s > 0):
            raise SetupError(f"RayWorkers(start_s={self.start_s}): give seconds above 0")

    @property
    def needs(self) -> str:
        """Describe the resources of each worker."""
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")
