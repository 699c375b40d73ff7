"""Candidate layouts: every way to divide the job that its sizes allow, except those that another one always beats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.datacenter.checks.layout import check_precision, check_tensor_parallel
from atoll.datacenter.checks.parallel import check_context_parallel, check_experts
from atoll.datacenter.mesh.dims import ParallelDims
from atoll.datacenter.plan.bubble import SINGLE, SPLIT, V_SHAPED, problems
from atoll.datacenter.plan.layout import METHODS, Checkpointing, Layout, Method

if TYPE_CHECKING:
    from atoll.datacenter.job.parallel import PipelineSchedule
    from atoll.datacenter.plan.layout import Task

MIN_LOCAL_SEQUENCE = 2048
"""Context parallelism does not divide sequences below this length: other axes are better for shorter ones."""
MAX_MICRO_BATCH = 16
MAX_STAGES_PER_RANK = 8
BEATEN: frozenset[PipelineSchedule] = frozenset({"gpipe", "looped_bfs"})
"""Schedules that wait as long as ``1f1b`` and ``interleaved`` but hold more; considered only on request."""
RECOMPUTATION: tuple[Checkpointing, ...] = ("none", "gathered", "selective", "full")
"""From fastest to smallest: the first that fits is the best."""

_CHECKS = (check_tensor_parallel, check_context_parallel, check_experts, check_precision)

Wanted = Callable[[Layout], bool]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout without its choice of recomputation."""

    dims: ParallelDims
    method: Method
    micro_batch: int
    micro_batches: int
    schedule: PipelineSchedule
    stages_per_rank: int

    def layout(self, checkpointing: Checkpointing) -> Layout:
        """Return the layout with this recomputation."""
        return Layout(
            self.dims,
            self.method,
            self.micro_batch,
            self.micro_batches,
            checkpointing,
            self.schedule,
            self.stages_per_rank,
        )


def meshes(task: Task, ranks: int, ranks_per_node: int) -> Iterator[ParallelDims]:
    """Yield degrees whose product is the number of ranks and that divide the sizes; ``tp`` stays within a node."""
    for tp in _divisors(ranks):
        if tp > ranks_per_node or not _fits(task, tp, 1):
            continue
        for cp in _divisors(ranks // tp):
            if (cp > 1 and task.job.batch.sequence // cp < MIN_LOCAL_SEQUENCE) or not _fits(task, tp, cp):
                continue
            for pp in _divisors(ranks // tp // cp):
                if pp == 1 or (pp <= task.job.model.layers and not task.shape.tied):
                    yield from _data_axes(task, ranks // tp // cp // pp, ParallelDims(pp=pp, cp=cp, tp=tp))


def candidates(task: Task, dims: ParallelDims, schedules: frozenset[PipelineSchedule]) -> Iterator[Candidate]:
    """Yield methods, micro-batches and schedules on a mesh."""
    share = task.job.batch.global_batch // dims.batch
    for micro_batch in _divisors(share):
        if micro_batch > MAX_MICRO_BATCH:
            break
        for method in METHODS:
            if not _method_suits(task, dims, method):
                continue
            for schedule, stages in _pipelines(task, dims.pp, share // micro_batch, schedules):
                if not (schedule in SPLIT and method == "zero3"):  # see ``checks.pipeline``
                    yield Candidate(dims, method, micro_batch, share // micro_batch, schedule, stages)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _fits(task: Task, tp: int, cp: int) -> bool:
    """Return whether tensor and context parallelism can divide the job this way."""
    dims = ParallelDims(cp=cp, tp=tp)
    return not any(True for check in _CHECKS for _ in check(task.job, dims))


def _data_axes(task: Task, data: int, others: ParallelDims) -> Iterator[ParallelDims]:
    if task.job.batch.global_batch % data:
        return
    for shard in _divisors(data):
        fsdp = shard * others.cp
        for ep in _divisors(fsdp) if task.job.model.moe else [1]:
            dims = ParallelDims(others.pp, data // shard, shard, others.cp, others.tp, ep)
            if ep == 1 or not any(True for _ in check_experts(task.job, dims)):
                yield dims


def _method_suits(task: Task, dims: ParallelDims, method: Method) -> bool:
    """Keep one of several methods that are equivalent on this mesh."""
    if method == "ddp":
        return dims.dp_shard == 1 and dims.cp == 1
    if dims.fsdp == 1:
        return False
    # A pipeline keeps gradients, and parameters once they are gathered, to the last micro-batch: all hold as much as
    # zero1, and zero3 gathers more often. Only zero3 offloads.
    return dims.pp == 1 or method == ("zero3" if task.job.data_parallel.cpu_offload else "zero1")


def _pipelines(
    task: Task, ranks: int, micro_batches: int, schedules: frozenset[PipelineSchedule]
) -> Iterator[tuple[PipelineSchedule, int]]:
    if ranks == 1:
        yield "1f1b", 1
        return
    if micro_batches < ranks:
        return
    for schedule in sorted(schedules):
        for stages in _stages(schedule):
            room = ranks * stages <= task.job.model.layers
            if room and not any(problems(schedule, ranks, stages, micro_batches)):
                yield schedule, stages


def _stages(schedule: PipelineSchedule) -> range:
    if schedule in SINGLE:
        return range(1, 2)
    return range(2, 3) if schedule in V_SHAPED else range(2, MAX_STAGES_PER_RANK + 1)
