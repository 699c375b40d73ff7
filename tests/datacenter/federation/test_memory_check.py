"""A silo whose devices have no room for the model declines rounds and says what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from atoll.datacenter.federation.memory_check import MemoryCheck, held_bytes
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import World
from atoll.datacenter.models import spec_of
from atoll.processes.memory import memory_bytes
from tests.datacenter.training import small

WORLD = World(0, 2, 0, torch.device("cpu"))
VISION = {"kind": "vision", "vocab": 10, "layers": 1, "dim": 32, "heads": 4}


def check_of(world: World = WORLD, **sections: Any) -> MemoryCheck:
    """MemoryCheck of two ranks on one machine, one of which holds the whole model."""
    job = SiloJob.model_validate(small(**sections))
    return MemoryCheck.of(job, [spec_of(job.model).build()], world)


def test_a_model_with_room_meets_no_objection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    memory_check = check_of()
    assert memory_check.objection() is None
    assert memory_check.memory_bytes == memory_bytes() // 2


def test_the_objection_names_what_is_needed_what_there_is_and_a_layout_that_would_fit() -> None:
    memory_check = check_of(data_parallel={"method": "ddp"}, model={"layers": 40, "dim": 256, "ffn_dim": 512})
    small_device = replace(memory_check, memory_bytes=int(0.9 * memory_check.needed_bytes))
    reason = small_device.objection()
    assert reason is not None
    assert reason.startswith("the model does not fit this silo: parameters and optimiser states take 0.")
    assert f"on a rank, which has {small_device.memory_bytes / 2**30:.3g} GiB" in reason
    assert "this layout of its 2 ranks would fit: dp_shard 2, zero" in reason


def test_without_such_a_layout_it_asks_for_more() -> None:
    memory_check = replace(check_of(), memory_bytes=1000)
    assert "no layout of its 2 ranks is known to fit: start more ranks" in str(memory_check.objection())


@pytest.mark.parametrize(
    ("optimiser", "numbers"), [({}, 3), ({"name": "sgd"}, 1), ({"name": "sgd", "momentum": 0.9}, 2)]
)
def test_parts_that_the_planner_does_not_know_are_counted(optimiser: dict[str, Any], numbers: int) -> None:
    """Frozen parameters have no states."""
    job = SiloJob.model_validate(small(model=VISION, data={"source": "digits"}, optimiser={"lr": 0.1} | optimiser))
    parts = [nn.Linear(10, 10), nn.Linear(4, 4)]
    parts[1].requires_grad_(requires_grad=False)
    assert held_bytes(job, parts) == 4 * (110 * numbers + 20)
    memory_check = MemoryCheck.of(job, parts, WORLD)
    assert (memory_check.needed_bytes, memory_check.task) == (held_bytes(job, parts), None)
    assert "on a rank" in str(replace(memory_check, memory_bytes=1).objection())
