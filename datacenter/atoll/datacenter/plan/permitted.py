"""Layouts that the job's settings rule out, other than by its sizes: ``[privacy]``, recovery in place, DDP's hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.datacenter.checks.layout import check_data_parallel
from atoll.datacenter.checks.privacy import check_private_layout
from atoll.datacenter.checks.recovery import check_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.datacenter.job import SiloJob
    from atoll.datacenter.plan.candidates import Wanted
    from atoll.datacenter.plan.layout import Layout


def permitted(job: SiloJob, wanted: Wanted | None = None) -> Wanted | None:
    """Return whether a layout is wanted and the job's settings permit it; None: all layouts are.

    Args:
        job: the job.
        wanted: returns whether a layout is to be considered.
    """
    section = job.data_parallel
    if job.privacy is None and job.faults.recovery != "in-place" and section.hook == "none" and not section.uneven:
        return wanted

    def suits(layout: Layout) -> bool:
        return (wanted is None or wanted(layout)) and not any(True for _ in _refused(job, layout))

    return suits


def _refused(job: SiloJob, layout: Layout) -> Iterator[str]:
    """Yield why training would refuse the job with this layout; without validating the whole job again."""
    section = job.data_parallel.model_copy(update={"method": layout.method})
    memory = job.memory.model_copy(update={"checkpointing": layout.checkpointing})
    tried = job.model_copy(update={"data_parallel": section, "memory": memory})
    yield from check_private_layout(tried, layout.dims)
    yield from check_groups(tried, layout.dims)
    if layout.method == "ddp":  # other methods drop the settings of DDP
        yield from check_data_parallel(tried, layout.dims)
