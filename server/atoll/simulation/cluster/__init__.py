"""Workers on Ray: actors that run tasks and hold one integer sum each. Ray is imported when such a pool is created."""

from __future__ import annotations

from atoll.client import Policy
from atoll.simulation.cluster.ray_workers import RayWorkers
from atoll.simulation.errors import SetupError
from atoll.simulation.participant_objects import Make
from atoll.simulation.worker_pool import WorkerPool
from atoll.text.installing import install_hint

__all__ = ["RayWorkers", "ray_pool"]


def ray_pool(make: Make, policy: Policy | None, keep: int, workers: RayWorkers) -> WorkerPool:
    """Start workers on Ray.

    Args:
        make: makes a participant.
        policy: what participants may send besides updates.
        keep: participants' objects that each worker keeps.
        workers: their number and resources.

    Raises:
        SetupError: if Ray is not installed or cannot be joined, or if the workers cannot start.
    """
    try:
        from atoll.simulation.cluster.actor import Setup  # noqa: PLC0415 - needs the extra
        from atoll.simulation.cluster.pool import RayPool  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise SetupError(f"workers on Ray need it: {install_hint('server,ray')}") from error
    return RayPool(Setup(make, policy, keep, workers.gpus), workers)
