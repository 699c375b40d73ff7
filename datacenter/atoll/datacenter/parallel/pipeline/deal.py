"""Assign blocks to stages, and stages to ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.parallel.pipeline.cost import Costs, measure_costs
from atoll.datacenter.parallel.pipeline.kinds import KINDS

if TYPE_CHECKING:
    import torch

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.parallel import PipelineSection
    from atoll.datacenter.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Deal:
    """Assignment of a model's blocks.

    Attributes:
        blocks: numbers of the blocks of each stage, in order.
        ranks: rank of each stage along the axis ``pp``.
    """

    blocks: tuple[range, ...]
    ranks: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.blocks)

    def of_rank(self, rank: int) -> list[int]:
        """Return the numbers of a rank's stages, in the model's order."""
        return [stage for stage, owner in enumerate(self.ranks) if owner == rank]


def stages_per_rank(section: PipelineSection) -> int:
    """Return the stages on each rank: two for V schedules, otherwise as the job sets it."""
    return 2 if KINDS[section.schedule].v_shaped else section.stages_per_rank


def micro_batches(job: SiloJob, batch_ranks: int) -> int:
    """Return the number of micro-batches of one pipeline in a step, rounded down."""
    return job.batch.global_batch // (batch_ranks * job.batch.micro_batch)


def stage_ranks(section: PipelineSection, ranks: int) -> tuple[int, ...]:
    """Return the rank of each stage: in turn, or down and up for V schedules (``r`` has ``r`` and ``2 P - 1 - r``)."""
    if KINDS[section.schedule].v_shaped:
        return (*range(ranks), *reversed(range(ranks)))
    return tuple(range(ranks)) * section.stages_per_rank


def deal_job(job: SiloJob, spec: ModelSpec, blocks: int, ranks: int, device: torch.device) -> Deal:
    """Assign the blocks of a model as the job asks; collective if costs are measured.

    Raises:
        LayoutError: if there are fewer blocks than stages.
    """
    if job.pipeline.balance == "cost":
        costs = measure_costs(spec, job, device)
    else:
        costs = Costs(float(bool(spec.first)), (1.0,) * blocks, float(bool(spec.last)))
    stages = ranks * stages_per_rank(job.pipeline)
    return Deal(deal(costs.blocks, stages, first=costs.first, last=costs.last), stage_ranks(job.pipeline, ranks))


def deal(costs: Sequence[float], stages: int, *, first: float, last: float) -> tuple[range, ...]:
    """Divide blocks into contiguous stages of at least one block, minimising the cost of the most expensive stage.

    Solves the linear partition problem exactly; among the optima it takes the one with the least sum of squares, which
    evens out the other stages. Takes time in proportion to ``stages * blocks^2``.

    Args:
        costs: cost of each block, at least 0.
        stages: number of stages.
        first: cost of the modules before the blocks.
        last: cost of the modules after the blocks.

    Raises:
        LayoutError: if there are fewer blocks than stages.
    """
    blocks = len(costs)
    if blocks < stages:
        raise LayoutError(f"{blocks} blocks cannot fill {stages} pipeline stages: each needs at least one")
    before = [0.0, *accumulate(costs)]

    def cost(stage: int, begin: int, end: int) -> float:
        edges = (first if stage == 0 else 0.0) + (last if stage == stages - 1 else 0.0)
        return before[end] - before[begin] + edges

    @cache
    def dearest(stage: int, begin: int) -> float:
        """Return the minimum of the maximum cost over this stage and later ones, given the remaining blocks."""
        if stage == stages - 1:
            return cost(stage, begin, blocks)
        ends = range(begin + 1, blocks - (stages - 1 - stage) + 1)
        return min(max(cost(stage, begin, end), dearest(stage + 1, end)) for end in ends)

    limit = dearest(0, 0) * (1 + 1e-9)

    @cache
    def evenest(stage: int, begin: int) -> tuple[float, tuple[int, ...]]:
        """Return the least sum of squares within that maximum, and the ends of the stages."""
        if stage == stages - 1:
            mine = cost(stage, begin, blocks)
            return (mine**2 if mine <= limit else float("inf")), (blocks,)
        found: tuple[float, tuple[int, ...]] = (float("inf"), ())
        for end in range(begin + 1, blocks - (stages - 1 - stage) + 1):
            mine = cost(stage, begin, end)
            if mine > limit:
                break
            rest, ends = evenest(stage + 1, end)
            found = min(found, (mine**2 + rest, (end, *ends)))
        return found

    ends = evenest(0, 0)[1]
    return tuple(range(begin, end) for begin, end in zip((0, *ends), ends, strict=False))
