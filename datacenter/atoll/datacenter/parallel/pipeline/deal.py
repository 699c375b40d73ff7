"""Which blocks go to which stage, and which stages to which rank."""

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
    """What each stage holds and where it lives.

    Attributes:
        blocks: numbers of the blocks of each stage, in order.
        ranks: rank of each stage, along the axis ``pp``.
    """

    blocks: tuple[range, ...]
    ranks: tuple[int, ...]

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.blocks)

    def of_rank(self, rank: int) -> list[int]:
        """Numbers of a rank's stages, the first of the model first."""
        return [stage for stage, owner in enumerate(self.ranks) if owner == rank]


def stages_per_rank(section: PipelineSection) -> int:
    """Stages on each rank: two for schedules that go down and up again, else as the job says."""
    return 2 if KINDS[section.schedule].v_shaped else section.stages_per_rank


def micro_batches(job: SiloJob, batch_ranks: int) -> int:
    """Micro-batches of one pipeline in a step, whole ones."""
    return job.batch.global_batch // (batch_ranks * job.batch.micro_batch)


def place(section: PipelineSection, ranks: int) -> tuple[int, ...]:
    """The rank of each stage: round and round, or for V schedules down and up (``r`` has ``r`` and ``2 P - 1 - r``)."""
    if KINDS[section.schedule].v_shaped:
        return (*range(ranks), *reversed(range(ranks)))
    return tuple(range(ranks)) * section.stages_per_rank


def deal_job(job: SiloJob, spec: ModelSpec, blocks: int, ranks: int, device: torch.device) -> Deal:
    """Deal a model of so many blocks as the job says; collective where costs are measured.

    Raises:
        LayoutError: if there are fewer blocks than stages.
    """
    if job.pipeline.balance == "cost":
        costs = measure_costs(spec, job, device)
    else:
        costs = Costs(float(bool(spec.first)), (1.0,) * blocks, float(bool(spec.last)))
    stages = ranks * stages_per_rank(job.pipeline)
    return Deal(deal(costs.blocks, stages, first=costs.first, last=costs.last), place(job.pipeline, ranks))


def deal(costs: Sequence[float], stages: int, *, first: float, last: float) -> tuple[range, ...]:
    """Cut blocks into stages of neighbours, at least one block each, so that the dearest is as cheap as can be.

    The linear partition problem, solved exactly; among the best, that with the least sum of squares, which evens out
    the others. Time ``stages * blocks^2``.

    Args:
        costs: of each block, from 0.
        stages: how many.
        first: cost of what stands before the blocks.
        last: cost of what stands after them.

    Raises:
        LayoutError: if there are fewer blocks than stages.
    """
    blocks = len(costs)
    if blocks < stages:
        raise LayoutError(f"{blocks} blocks cannot fill {stages} pipeline stages: each needs one at least")
    before = [0.0, *accumulate(costs)]

    def cost(stage: int, begin: int, end: int) -> float:
        edges = (first if stage == 0 else 0.0) + (last if stage == stages - 1 else 0.0)
        return before[end] - before[begin] + edges

    @cache
    def dearest(stage: int, begin: int) -> float:
        """The least possible cost of the dearest of this stage and those after it, these blocks left."""
        if stage == stages - 1:
            return cost(stage, begin, blocks)
        ends = range(begin + 1, blocks - (stages - 1 - stage) + 1)
        return min(max(cost(stage, begin, end), dearest(stage + 1, end)) for end in ends)

    limit = dearest(0, 0) * (1 + 1e-9)

    @cache
    def evenest(stage: int, begin: int) -> tuple[float, tuple[int, ...]]:
        """Least sum of squares within the limit, and where the stages end."""
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
