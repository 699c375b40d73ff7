"""Join a Ray cluster or start one on this machine, and count the workers that fit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import ray

from atoll.simulation.cluster.ray_workers import MOST, RayWorkers
from atoll.simulation.errors import SetupError
from atoll.simulation.workers import workers_to_a_gpu

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Disable Ray's usage statistics, and its choice of GPUs for workers that reserve none."""


def join(workers: RayWorkers) -> bool:
    """Connect to Ray, unless the script is connected; return whether ``leave`` must disconnect.

    Raises:
        SetupError: if there is no cluster at the address.
    """
    if ray.is_initialized():
        return False
    address = workers.address or os.environ.get("RAY_ADDRESS")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        cores = os.cpu_count() or 1
        wanted = math.ceil((workers.count or 0) * workers.cpus)
        options |= {"num_cpus": max(cores, wanted), "include_dashboard": False}
    try:
        ray.init(address=address or "local", **options)
    except Exception as error:  # Ray raises plain ones
        raise SetupError(f"Ray at {address or 'this machine'} cannot be joined: {error}") from error
    return True


def leave() -> None:
    """Disconnect, and stop the Ray that ``join`` started."""
    ray.shutdown()


def room_for(workers: RayWorkers) -> int:
    """The number of workers for which the cluster's nodes have room, at most ``MOST``.

    Raises:
        SetupError: if there is no room for one.
    """
    nodes: Iterable[Mapping[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    found = sum(_on(node["Resources"], workers) for node in nodes if node["Alive"])
    if not found:
        raise SetupError(
            f"no node of the cluster has {workers.needs} for a worker, together they have {resources()}; "
            "lower cpus or gpus"
        )
    return min(found, MOST)


def resources() -> str:
    """Describe the total resources of the cluster's nodes."""
    found: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return f"{found.get('CPU', 0.0):g} CPU and {found.get('GPU', 0.0):g} GPU"


def _on(has: Mapping[str, float], workers: RayWorkers) -> int:
    """The number of workers that fit on a node. A share of a GPU must lie on one GPU."""
    fits = int(has.get("CPU", 0.0) / workers.cpus + 1e-9)
    if not workers.gpus:
        return fits
    gpus = has.get("GPU", 0.0)
    each = int(gpus) * workers_to_a_gpu(workers.gpus) if workers.gpus <= 1 else int(gpus / workers.gpus)
    return min(fits, each)
