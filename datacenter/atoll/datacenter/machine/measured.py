"""Measure a whole machine: compute, memory, and the links within and between nodes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from atoll.datacenter.machine.collectives import Point, fit_link, measure_collective, sizes
from atoll.datacenter.machine.compute import (
    FORMATS,
    MatmulRate,
    MemoryRate,
    device_memory_bytes,
    device_name,
    measure_matmul,
    measure_memory,
)
from atoll.datacenter.machine.cost import COLLECTIVES
from atoll.datacenter.machine.rates import Link, MachineRates, MatmulRates
from atoll.datacenter.mesh.world import ranks_per_node

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from atoll.datacenter.mesh import World

MIB = 1 << 20
SLOW_S = 0.2
"""Seconds of a matrix product above which its format is not measured at larger sizes: CPUs emulate some formats."""
Progress = Callable[[str, int, int], None]
"""Called with what is measured next, how many measurements are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of the measurements.

    Attributes:
        collective_bytes: the largest buffer.
        matmul_sizes: rows of the matrices.
        memory_bytes: size of the copy.
    """

    collective_bytes: int
    matmul_sizes: tuple[int, ...]
    memory_bytes: int


SMOKE = Extent(64 * 1024, (128,), MIB)
ON_CPU = Extent(16 * MIB, (512, 1024), 256 * MIB)
ON_GPU = Extent(1024 * MIB, (4096, 8192, 16_384), 4096 * MIB)


@dataclass(frozen=True)
class Measured:
    """Results of the measurements.

    Attributes:
        rates: rates for the planner.
        matmuls: matrix products, by format and size.
        memory: the copy.
        intra: collectives within a node; empty with one rank per node.
        inter: collectives between nodes, one rank of each; empty on one node.
        seconds: duration of the measurement.
    """

    rates: MachineRates
    matmuls: tuple[MatmulRate, ...]
    memory: MemoryRate
    intra: tuple[Point, ...]
    inter: tuple[Point, ...]
    seconds: float


@dataclass
class _Count:
    progress: Progress
    total: int
    done: int = field(default=0)

    def next(self, what: str) -> None:
        self.progress(what, self.done, self.total)
        self.done += 1


def measure_machine(world: World, extent: Extent, progress: Progress, *, inter: Link | None = None) -> Measured:
    """Measure the machine. Collective: every rank of the world must call.

    Args:
        world: the ranks to measure. Ranks of a node must have consecutive numbers, as torchrun assigns them.
        extent: sizes of the measurements.
        progress: called before each measurement.
        inter: rates of the links between nodes if there is only one node.
    """
    began = time.monotonic()
    local = ranks_per_node(world)
    nodes = world.size // local
    wanted = list(sizes(extent.collective_bytes))
    links = (local > 1) + (nodes > 1)
    count = _Count(progress, len(FORMATS) * len(extent.matmul_sizes) + 1 + links * len(COLLECTIVES) * len(wanted))
    matmuls = tuple(_matmuls(world.device, extent.matmul_sizes, count))
    count.next("memory")
    memory = measure_memory(world.device, extent.memory_bytes)
    inside = tuple(_collectives(_nodes_group(world, local), world.device, wanted, count)) if local > 1 else ()
    across = tuple(_collectives(_peers_group(world, local), world.device, wanted, count)) if nodes > 1 else ()
    within, between, said = _links(fit_link(inside), fit_link(across), inter)
    place = "one node" if nodes == 1 else f"{nodes} nodes"
    software = f"{dist.get_backend()}, torch {torch.__version__}, {platform.platform(terse=True)}"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    rates = MachineRates(
        name=device_name(world.device),
        source=f"measured by atoll silo bench on {day}: {world.size} ranks on {place}, {software}; {said}",
        matmul_flops_per_s=_best(matmuls),
        memory_bytes_per_s=memory.bytes_per_s,
        memory_bytes=device_memory_bytes(world.device, local),
        ranks_per_node=local,
        intra=within,
        inter=between,
    )
    return Measured(rates, matmuls, memory, inside, across, time.monotonic() - began)


def _matmuls(device: torch.device, wanted: Sequence[int], count: _Count) -> Iterator[MatmulRate]:
    for number_format in FORMATS:
        for size in wanted:
            count.next(f"matrix products, {number_format}, {size}")
            found = measure_matmul(device, number_format, size)
            if found is None:
                break
            yield found
            if found.timing.seconds > SLOW_S:
                break


def _collectives(
    group: ProcessGroup | None, device: torch.device, wanted: Sequence[int], count: _Count
) -> Iterator[Point]:
    for collective in COLLECTIVES:
        for size in wanted:
            count.next(f"{collective}, {size / 1024:,.0f} KiB")
            yield measure_collective(collective, size, device, group)


def _nodes_group(world: World, local: int) -> ProcessGroup | None:
    """Return the group of this rank's node; None, meaning all ranks, if there is no other node."""
    if local == world.size:
        return None
    return _mine(world.rank, [list(range(first, first + local)) for first in range(0, world.size, local)])


def _peers_group(world: World, local: int) -> ProcessGroup | None:
    """Return the group of the ranks with this local rank on their nodes."""
    return _mine(world.rank, [list(range(place, world.size, local)) for place in range(local)])


def _mine(rank: int, groups: Sequence[list[int]]) -> ProcessGroup | None:
    """Return the group that contains this rank. Every rank must create all groups."""
    mine = None
    for ranks in groups:
        made = dist.new_group(ranks)
        if rank in ranks and isinstance(made, dist.ProcessGroup):
            mine = made
    return mine


def _links(within: Link | None, between: Link | None, given: Link | None) -> tuple[Link, Link, str]:
    """Return the links of the rates, and a note on the links that were not measured."""
    inter = between or given
    intra = within or inter
    if intra is None:
        nothing = Link(alpha_s=0.0, bytes_per_s=1.0)
        return nothing, nothing, "one rank: links not measured, 1 B/s as a placeholder"
    if between is not None:
        return (
            intra,
            between,
            "links fitted to rings" if within else "one rank per node: links within a node as those between nodes",
        )
    if given is not None:
        return intra, given, "links between nodes as given, not measured"
    return intra, inter or intra, "links between nodes not measured, assumed equal to those within"


def _best(matmuls: Sequence[MatmulRate]) -> MatmulRates:
    """Return the fastest size of each format."""
    best: dict[str, float] = {}
    for found in matmuls:
        best[found.number_format] = max(found.flops_per_s, best.get(found.number_format, 0.0))
    return MatmulRates(**best)
