"""Bytes that each collective moves over gloo, counted by the kernel, compared with the cost models."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from atoll.datacenter.machine.collectives import measure_collective
from atoll.datacenter.machine.cost import MODELS, Algorithm, Collective
from benchmarks.figures import Figure
from benchmarks.silo.sockets import sent_bytes
from tests.datacenter.ranks import run_ranks

COMMAND = "python -m benchmarks.silo collectives"
ALGORITHMS: dict[Collective, Algorithm] = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "broadcast": "tree",
    "reduce": "ring",
    "all_to_all": "pairwise",
}
"""The cost model of gloo; its reduce-scatter is an all-reduce of which each rank keeps its part."""
RANKS = (2, 4)
WITHIN = 1.01
_TIMEOUT_S = 300.0
_WARM_UP = 2
"""Calls of ``timing.measure`` before its samples."""


def run(smoke: bool) -> list[Figure]:
    """Bytes sent by the busiest rank, for each collective."""
    size = 1 << (16 if smoke else 22)
    figures = []
    for ranks in RANKS[:1] if smoke else RANKS:
        found = run_ranks(_measure, ranks, size, timeout_s=_TIMEOUT_S)
        for collective, algorithm in ALGORITHMS.items():
            busiest = max(one[collective]["bytes"] for one in found)
            figures += _figures(collective, algorithm, ranks, size, busiest, found[0][collective]["seconds"])
    return figures


def _figures(
    collective: Collective, algorithm: Algorithm, ranks: int, size: int, busiest: float, seconds: float
) -> list[Figure]:
    model = MODELS[collective, algorithm].volume(ranks) * size
    name = f"{collective}, {size / 2**20:g} MiB, {ranks} ranks: busiest rank sends"
    if collective == "reduce_scatter":
        sent = Figure.stated(f"{name} (gloo: an all-reduce)", busiest / 1e6, "MB", COMMAND, beside=model / 1e6)
    else:
        sent = Figure.within(f"{name} ({algorithm})", busiest / 1e6, "MB", COMMAND, limit=model / 1e6, target=WITHIN)
    return [sent, Figure.stated("  its time, CPU and loopback", seconds * 1000, "ms", COMMAND)]


def _measure(size: int) -> dict[str, Any]:
    cpu = torch.device("cpu")
    found: dict[str, Any] = {}
    for collective in ALGORITHMS:
        measure_collective(collective, 4 * dist.get_world_size(), cpu)  # connections are made
        dist.barrier()
        before = sent_bytes()
        point = measure_collective(collective, size, cpu)
        dist.barrier()
        calls = point.timing.calls + _WARM_UP
        found[collective] = {"bytes": (sent_bytes() - before) / calls, "seconds": point.timing.seconds}
    return found
