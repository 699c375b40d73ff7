"""Lower bound of a job's memory, and a layout of the same ranks that has room for it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from atoll.datacenter.plan.bubble import SCHEDULES
from atoll.datacenter.plan.candidates import BEATEN, candidates, meshes
from atoll.datacenter.plan.memory import kept
from atoll.datacenter.plan.prediction import fullest
from atoll.datacenter.plan.stages import shares

if TYPE_CHECKING:
    from atoll.datacenter.job.parallel import PipelineSchedule
    from atoll.datacenter.plan.layout import Layout, Task

MAX_LOOKED_AT = 2000
"""Maximum number of layouts to try: this many take about a second."""


def needed_bytes(task: Task, layout: Layout) -> float:
    """Return the bytes that parameters and states take on the fullest rank: every step needs more."""
    return max(kept(task, layout, share) for share in shares(layout, task.job.model.layers))


def fitting_layout(task: Task, ranks: int, ranks_per_node: int, memory_bytes: float) -> Layout | None:
    """Return the first layout of this many ranks that is predicted to fit; None if none of those tried fits.

    Layouts that only divide data and states come before those that cut the model.
    """
    schedules: frozenset[PipelineSchedule] = frozenset(name for name in SCHEDULES if name not in BEATEN)
    found = (
        candidate.layout(task.job.memory.checkpointing)
        for dims in meshes(task, ranks, ranks_per_node)
        for candidate in candidates(task, dims, schedules)
    )
    for layout in islice(found, MAX_LOOKED_AT):
        if needed_bytes(task, layout) <= memory_bytes and fullest(task, layout).memory.size <= memory_bytes:
            return layout
    return None
