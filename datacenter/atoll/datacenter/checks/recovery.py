"""Check that a job can recover in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.mesh.dims import ParallelDims


def check_recovery(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Require at least two replica groups that share only the mean of their gradients, for recovery in place."""
    if job.faults.recovery != "in-place":
        return
    yield from check_groups(job, dims)
    if dims.dp_replicate >= 2:
        yield from _company(job)


def check_groups(job: SiloJob, dims: ParallelDims) -> Iterator[str]:
    """Require enough replica groups, for recovery in place."""
    if job.faults.recovery != "in-place":
        return
    if dims.dp_replicate < 2:
        yield (
            'faults.recovery = "in-place" needs at least two replica groups, and mesh.dp_replicate is '
            f"{dims.dp_replicate}: a model cut by dp_shard, tp, pp or cp alone has no second copy to use; raise "
            'dp_replicate, or set faults.recovery = "restart"'
        )
        return
    least, backup = job.faults.min_replicas, job.faults.backup_replicas
    if least + backup > dims.dp_replicate:
        yield (
            f"faults.min_replicas = {least} and faults.backup_replicas = {backup} are together more than "
            f"mesh.dp_replicate = {dims.dp_replicate}: lower one of them"
        )


def _company(job: SiloJob) -> Iterator[str]:
    """Yield settings whose state or sums span all ranks."""
    section = job.data_parallel
    for wrong, setting, reason in (
        (job.privacy is not None, "[privacy]", "whose noise covers the whole batch, including a lost group's part"),
        (job.model.moe is not None, "[model.moe]", "whose router is balanced by counts over all ranks"),
        (
            job.processes.numa != "none",
            f'processes.numa = "{job.processes.numa}"',
            "which torchrun's agent does, and replica groups have none",
        ),
        (section.uneven, "data_parallel.uneven = true", "which moves rows between groups"),
        (
            section.hook != "none",
            f'data_parallel.hook = "{section.hook}"',
            "whose residuals a returning group cannot get",
        ),
        (
            section.check_replicas_every > 0,
            f"data_parallel.check_replicas_every = {section.check_replicas_every}",
            "which compares the ranks of one world",
        ),
    ):
        if wrong:
            yield f'{setting}, {reason}, is not available with faults.recovery = "in-place": leave one of them out'
    if job.checkpoint.folder is not None and job.checkpoint.every_steps is None:
        yield (
            'checkpoint.every_steps is needed with faults.recovery = "in-place": replica groups measure the cost of a '
            "checkpoint separately, and must have it due at the same step"
        )
