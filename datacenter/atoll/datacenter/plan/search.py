"""Search all layouts: keep those that fit, and rank them by predicted step time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from atoll.datacenter.checks.model import check_muon
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.plan.bubble import SCHEDULES, SPLIT
from atoll.datacenter.plan.candidates import BEATEN, RECOMPUTATION, candidates, meshes
from atoll.datacenter.plan.layout import Task, job_with
from atoll.datacenter.plan.memory import CONTEXT_BYTES, least
from atoll.datacenter.plan.permitted import permitted
from atoll.datacenter.plan.prediction import Prediction, fullest, predict_layout
from atoll.datacenter.plan.stages import shares

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.job.parallel import PipelineSchedule
    from atoll.datacenter.mesh.dims import ParallelDims
    from atoll.datacenter.plan.candidates import Candidate, Wanted
    from atoll.datacenter.plan.layout import Checkpointing, Layout
    from atoll.datacenter.plan.memory import Peak
    from atoll.datacenter.plan.step_time import Machine

Progress = Callable[[int, int], None]
"""Called with the number of meshes done and of all meshes."""


@dataclass
class Found:
    """Result of a search.

    Attributes:
        best: fastest layout of each mesh that has one, fastest first.
        considered: number of layouts considered.
        fitting: number of them that fit.
        smallest: layout of least memory among those that do not fit, with its bytes; None if all fit.
    """

    best: list[Prediction] = field(default_factory=list)
    considered: int = 0
    fitting: int = 0
    smallest: tuple[float, Layout] | None = None

    def too_large(self, size: float, layout: Layout) -> None:
        """Remember the layout that misses by the least."""
        if self.smallest is None or size < self.smallest[0]:
            self.smallest = (size, layout)


class NothingFitsError(LayoutError):
    """No layout fits; the message names the closest one and what would help."""


def search(
    task: Task, ranks: int, machine: Machine, *, wanted: Wanted | None = None, progress: Progress | None = None
) -> Found:
    """Consider every layout of a job on this many ranks.

    Memory: one prediction for each mesh.

    Args:
        task: the job to plan.
        ranks: number of ranks.
        machine: the machine to run on.
        wanted: returns whether a layout is to be considered.
        progress: called after each mesh.

    Raises:
        NothingFitsError: if no layout fits, with the numbers.
        LayoutError: if there is no layout to consider, or if the optimiser cannot train this model.
    """
    if problems := [*check_muon(task.job, blocks=True)]:
        raise LayoutError(*problems)
    wanted = permitted(task.job, wanted)
    found = Found()
    waiting = list(meshes(task, ranks, machine.rates.ranks_per_node))
    schedules = _schedules(task)
    for number, dims in enumerate(waiting):
        if (best := _best_on(task, dims, machine, schedules, wanted, found)) is not None:
            found.best.append(best)
        if progress is not None:
            progress(number + 1, len(waiting))
    if not found.considered:
        raise LayoutError(_no_candidates(task, ranks))
    if not found.best:
        raise NothingFitsError(*_closest(task, found, machine))
    found.best.sort(key=lambda one: one.step.value)
    return found


def _schedules(task: Task) -> frozenset[PipelineSchedule]:
    asked = task.job.pipeline.schedule if "schedule" in task.job.pipeline.model_fields_set else None
    return frozenset(name for name in SCHEDULES if name not in BEATEN or name == asked)


def _best_on(
    task: Task,
    dims: ParallelDims,
    machine: Machine,
    schedules: frozenset[PipelineSchedule],
    wanted: Wanted | None,
    found: Found,
) -> Prediction | None:
    best: Prediction | None = None
    for candidate in candidates(task, dims, schedules):
        fitting = _lightest_that_fits(task, candidate, machine, wanted, found)
        if fitting is None:
            continue
        found.fitting += 1
        predicted = predict_layout(task, fitting[0], machine, fitting[1])
        if best is None or predicted.step.value < best.step.value:
            best = predicted
    return best


def _lightest_that_fits(
    task: Task, candidate: Candidate, machine: Machine, wanted: Wanted | None, found: Found
) -> tuple[Layout, Peak] | None:
    """Return the layout with the least recomputation that fits, with its memory.

    The most recomputation is tried first: if that does not fit, nothing else does, unless a rank has a single block,
    which it holds whole during recomputation.
    """
    room = machine.usable_bytes - CONTEXT_BYTES
    lightest: tuple[Layout, Peak] | None = None
    for checkpointing in reversed(_recomputations(task, candidate)):
        layout = candidate.layout(checkpointing)
        if wanted is not None and not wanted(layout):
            continue
        found.considered += 1
        held = shares(layout, task.job.model.layers)
        size = least(task, layout, held[0])
        if size > room:
            found.too_large(size + CONTEXT_BYTES, layout)
            return None
        peak = fullest(task, layout)
        if peak.memory.size <= room:
            lightest = layout, peak
            continue
        found.too_large(peak.memory.size + CONTEXT_BYTES, layout)
        if checkpointing != "budget" and min(share.all_blocks for share in held) > 1:
            break
    return lightest


def _recomputations(task: Task, candidate: Candidate) -> tuple[Checkpointing, ...]:
    """Return what the schedule allows (``checks.pipeline``); the compiler's budget only if the job asks for it."""
    twice = candidate.dims.pp > 1 and candidate.schedule in SPLIT and not task.job.memory.compile
    gathers = candidate.dims.tp > 1 and task.job.tensor_parallel.sequence
    useless = {"selective"} if twice else set()
    if not gathers:
        useless.add("gathered")
    known: list[Checkpointing] = [one for one in RECOMPUTATION if one not in useless]
    if task.job.memory.checkpointing == "budget":
        known.append("budget")
    return tuple(known)


def _no_candidates(task: Task, ranks: int) -> str:
    model, batch = task.job.model, task.job.batch
    return (
        f"no layout of {ranks} ranks divides heads = {model.heads}, kv_heads = {model.kv_heads}, "
        f"layers = {model.layers}, "
        f"global_batch = {batch.global_batch} and sequence = {batch.sequence} as asked"
        f"{_rule(task.job)}: change the number of ranks, batch.global_batch, or a fixed setting"
    )


def _rule(job: SiloJob) -> str:
    if job.privacy is not None:
        return ", and [privacy] permits data parallelism only"
    return ', and faults.recovery = "in-place" needs two replicas' if job.faults.recovery == "in-place" else ""


def _closest(task: Task, found: Found, machine: Machine) -> list[str]:
    """Describe the closest layout, and by how much each remedy would reduce it."""
    have = machine.usable_bytes / 2**30
    if found.smallest is None:
        return [f"none of {found.considered} layouts fits {have:.1f} GiB"]
    _, layout = found.smallest
    needs = fullest(task, layout)
    size = (needs.memory.size + CONTEXT_BYTES) / 2**30
    parts = ", ".join(f"{name} {part.value / 2**30:.1f}" for name, part in needs.memory.parts().items() if part.value)
    problems = [
        f"none of {found.considered} layouts fits {have:.1f} GiB of {machine.describe()}; "
        f"closest: {layout.describe()}: "
        f"{size:.1f} GiB ({parts}, context {CONTEXT_BYTES / 2**30:.1f})"
    ]
    for remedy, smaller in _remedies(task, layout):
        try:
            left = (fullest(*smaller).memory.size + CONTEXT_BYTES) / 2**30
        except LayoutError:
            continue
        if left < size:
            problems.append(f"{remedy}: {left:.1f} GiB{', which fits' if left <= have else ''}")
    return problems


def _remedies(task: Task, layout: Layout) -> list[tuple[str, tuple[Task, Layout]]]:
    job = job_with(task.job, layout)
    found = []
    remedies: list[tuple[str, tuple[Task, Layout]]] = []
    private = job.privacy is not None  # refuses both
    if layout.method != "ddp" and not (job.data_parallel.cpu_offload or job.optimiser.name == "muon" or private):
        sharded = replace(layout, method="zero3")
        offload = job.data_parallel.model_copy(update={"method": "zero3", "cpu_offload": True})
        changed = Task.of(job.model_copy(update={"data_parallel": offload}))
        remedies.append(("with zero3 and data_parallel.cpu_offload = true", (changed, sharded)))
    if job.batch.sequence >= 2:
        half = job.batch.model_copy(update={"sequence": job.batch.sequence // 2})
        found.append((f"with batch.sequence = {half.sequence}", job.model_copy(update={"batch": half})))
    if job.precision.compute == "float32" and not private:
        low = job.precision.model_copy(update={"compute": "bfloat16"})
        found.append(('with precision.compute = "bfloat16"', job.model_copy(update={"precision": low})))
    remedies += [(remedy, (Task.of(changed), layout)) for remedy, changed in found]
    if layout.method != "ddp":
        wider = replace(layout, dims=replace(layout.dims, dp_shard=2 * layout.dims.dp_shard))
        remedies.append((f"on {wider.dims.world_size} ranks", (task, wider)))
    return remedies
