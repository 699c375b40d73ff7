"""Lanes: a CPU's uses values in place; the emulated GPU's provides them only once they have been waited for."""

from __future__ import annotations

import torch

from atoll.datacenter.federation.lane import Lane, weights_device
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import World
from tests.datacenter.federation.late_lane import LateLane
from tests.datacenter.training import small


def test_a_cpu_copies_nothing() -> None:
    lane, values = Lane(torch.device("cpu")), torch.arange(4.0)
    lane.follow()
    with lane.beside():
        assert lane.load("x", values).data_ptr() == lane.fetch("x", values).data_ptr() == values.data_ptr()
    lane.mark()()
    assert not lane.runs_ahead


def test_memory_of_an_input_is_that_of_its_chunk() -> None:
    lane = Lane(torch.device("cpu"))
    found = []
    for _ in range(4):
        with lane.beside():
            found.append(lane.host("x", 8).data_ptr())
    assert found[0] == found[2] != found[1] == found[3]


def test_the_emulation_shows_a_result_that_was_not_waited_for() -> None:
    lane, values = LateLane(), torch.arange(4.0)
    with lane.beside():
        found, wait = lane.fetch("x", values), lane.mark()
    assert not torch.equal(found, values)
    wait()
    assert torch.equal(found, values)


def test_offloaded_weights_are_encoded_on_the_host() -> None:
    world = World(0, 2, 0, torch.device("cuda", 0))
    kept, offloaded = (
        SiloJob.model_validate(small(data_parallel={"method": "zero3", "cpu_offload": offload}))
        for offload in (False, True)
    )
    assert weights_device(kept, world) == world.device
    assert weights_device(offloaded, world) == torch.device("cpu")
