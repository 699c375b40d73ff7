"""Layouts that are left out of the search: none would be faster, or hold less, than one that is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.datacenter.job.parallel import PipelineSchedule
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.mesh import ParallelDims
from atoll.datacenter.plan.bubble import SCHEDULES
from atoll.datacenter.plan.candidates import BEATEN, candidates
from atoll.datacenter.plan.layout import Layout, Task
from atoll.datacenter.plan.prediction import Prediction, predict_layout
from atoll.datacenter.plan.search import search
from atoll.datacenter.plan.step_time import Machine
from tests.datacenter.plan.jobs import SMALL, small

H100 = Machine.of(DATA_SHEETS["h100"])
PIPELINE = ParallelDims(pp=2, dp_shard=4)
STAYS: dict[PipelineSchedule, PipelineSchedule] = {"gpipe": "1f1b", "looped_bfs": "interleaved"}


def task(**sections: dict[str, Any]) -> Task:
    """A job with room for two stages on each of two ranks."""
    return Task.of(small(batch={"global_batch": 32}, model=SMALL | {"layers": 8}, **sections))


def kept(of: Task, dims: ParallelDims) -> list[Layout]:
    """Return the layouts of a mesh with the schedules that a search considers unasked."""
    schedules: frozenset[PipelineSchedule] = frozenset(name for name in SCHEDULES if name not in BEATEN)
    return [candidate.layout("none") for candidate in candidates(of, dims, schedules)]


def predicted(of: Task, layout: Layout) -> Prediction:
    return predict_layout(of, layout, H100)


def considered(of: Task) -> set[PipelineSchedule]:
    """Return the schedules that a search considers on two ranks."""
    seen: set[PipelineSchedule] = set()

    def wanted(layout: Layout) -> bool:
        if layout.dims.pp == 2:
            seen.add(layout.schedule)
        return True

    search(of, 2, H100, wanted=wanted)
    return seen


def test_beaten_schedules_are_considered_only_on_request() -> None:
    assert set(STAYS) == BEATEN
    unasked = considered(task())
    assert unasked >= set(STAYS.values())
    for schedule in STAYS:
        assert schedule not in unasked
        assert considered(task(pipeline={"schedule": schedule})) == unasked | {schedule}


@pytest.mark.parametrize("schedule", STAYS)
def test_a_beaten_schedule_is_no_faster_and_holds_no_less(schedule: PipelineSchedule) -> None:
    of = task()
    layouts = [layout for layout in kept(of, PIPELINE) if layout.schedule == STAYS[schedule]]
    assert layouts
    for layout in layouts:
        best, beaten = predicted(of, layout), predicted(of, replace(layout, schedule=schedule))
        assert best.step.value <= beaten.step.value
        assert best.memory.value <= beaten.memory.value


def test_pipelines_shard_states_alone_since_zero2_and_zero3_are_no_faster_and_hold_no_less() -> None:
    of = task()
    layouts = kept(of, PIPELINE)
    assert {layout.method for layout in layouts} == {"zero1"}
    assert {layout.method for layout in kept(of, ParallelDims(dp_shard=8))} == {"zero1", "zero2", "zero3"}
    offloading = task(data_parallel={"cpu_offload": True})
    assert {layout.method for layout in kept(offloading, PIPELINE)} == {"zero3"}
    for layout in layouts:
        best = predicted(of, layout)
        for method in ("zero2", "zero3"):
            beaten = predicted(of, replace(layout, method=method))
            assert best.step.value <= beaten.step.value
            assert best.memory.value <= beaten.memory.value
