"""Lower bound of a job's memory, and a layout of the same ranks that has room for it."""

from __future__ import annotations

import pytest

from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.least_memory import fitting_layout, needed_bytes
from atoll.datacenter.plan.memory import least
from atoll.datacenter.plan.prediction import fullest
from atoll.datacenter.plan.stages import shares
from tests.datacenter.plan.jobs import example, small


@pytest.mark.parametrize("mesh", [{}, {"tp": 2}, {"pp": 2}])
def test_what_is_needed_is_less_than_the_fullest_moment_takes(mesh: dict[str, int]) -> None:
    job = small(mesh=mesh, pipeline={"schedule": "1f1b"} if mesh == {"pp": 2} else {})
    layout = layout_of(job, 4)
    assert 0 < needed_bytes(Task.of(job), layout) < fullest(Task.of(job), layout).memory.size


def test_sharding_makes_room() -> None:
    """8 billion parameters with AdamW's states take 90 GiB; a quarter of them fits a device of 80 GB."""
    job = example("llama-8b", data_parallel={"method": "ddp"}, mesh={"dp_shard": 1, "dp_replicate": 8})
    task = Task.of(job)
    needed = needed_bytes(task, layout_of(job, 8))
    assert needed == pytest.approx(12 * task.shape.parameters.value)
    found = fitting_layout(task, 8, 8, 80e9)
    assert found is not None
    assert found.dims.world_size == 8
    assert fullest(task, found).memory.size < 80e9 < needed
    assert fitting_layout(task, 8, 8, 1e9) is None


def test_states_on_the_host_are_not_counted_on_the_device() -> None:
    """Otherwise the search would leave out layouts that fit."""
    job = small(data_parallel={"method": "zero3", "cpu_offload": True})
    layout = layout_of(job, 2)
    (share,) = shares(layout, job.model.layers)
    assert least(Task.of(job), layout, share) == 0
    assert needed_bytes(Task.of(job), layout) > 0
