"""A parameter server over real processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.errors import TrainingError
from atoll.datacenter.train.asynchrony.channel import Push
from atoll.datacenter.train.asynchrony.updates import Updates
from atoll.datacenter.train.pulse import Unwatched
from tests.datacenter.ranks import run_ranks, started_ranks
from tests.datacenter.train.asynchrony.working import served
from tests.datacenter.training import ALL_STEPS, small, train
from tests.patience import WAIT_S

TIMEOUT_S = WAIT_S


@pytest.mark.parametrize(
    "optimiser", [{"name": "adamw"}, {"name": "sgd", "lr": 0.1, "momentum": 0.9}], ids=["adamw", "sgd"]
)
def test_staleness_zero_by_clocks_is_synchronous_training(optimiser: dict[str, Any]) -> None:
    """This holds for any optimiser, and for uncounted labels that are spread unevenly over the workers."""
    alone = run_ranks(train, 1, small(optimiser=optimiser), ALL_STEPS)[0]
    asynchrony = {"staleness": 0, "apply": "clock"}
    found = run_ranks(served, 4, {"optimiser": optimiser, "asynchrony": asynchrony})[0]
    assert found["loss"] == pytest.approx(alone["losses"][-1], abs=2e-6)
    assert found["max_lead"] == 0
    assert found["tokens"] == 10 * (8 * 16 - 4 * 3)
    for name, value in found["parameters"].items():
        torch.testing.assert_close(value, alone["parameters"][name], rtol=0, atol=2e-6)


class Slow(Unwatched):
    """Worker 1 begins its first step when worker 0 is about to do its third."""

    def enter(self, step: int, phase: str) -> None:
        if phase != "training":
            return
        if dist.get_rank() == 1 and step == 3:
            dist.send(torch.zeros(1), dst=2)
        if dist.get_rank() == 2 and step == 1:
            dist.recv(torch.zeros(1), src=1)


def served_slowly(staleness: int) -> dict[str, Any]:
    return served({"optimiser": {"name": "sgd", "lr": 0.05}, "asynchrony": {"staleness": staleness}}, Slow)


def test_a_fast_worker_runs_as_far_ahead_as_it_may() -> None:
    """It runs two steps ahead, and the slow worker waits for that; without asynchrony neither would proceed."""
    found = run_ranks(served_slowly, 3, 2)[0]
    assert found["max_lead"] == 2
    assert found["tokens"] == 10 * (8 * 16 - 4 * 3)


def test_updates_that_arrive_are_steps_of_their_share() -> None:
    """Plain SGD adds the updates up to one step of all workers."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    seen: list[int] = []
    updates = Updates([parameter], torch.optim.SGD([parameter], lr=1.0), 2, "arrival", seen.append)
    updates.take(0, 0, Push(torch.tensor([2.0, 0.0, 4.0]), 4, 1.0))
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.25, 0.0, -0.5]))
    updates.take(0, 1, Push(torch.tensor([8.0, 8.0, 8.0]), 4, 1.0))
    torch.testing.assert_close(parameter.detach(), torch.tensor([-1.25, -1.0, -1.5]))
    assert seen == [0, 1]


def test_updates_of_a_clock_wait_for_each_other() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    seen: list[int] = []
    updates = Updates([parameter], torch.optim.SGD([parameter], lr=1.0), 2, "clock", seen.append)
    updates.take(1, 0, Push(torch.tensor([6.0]), 2, 1.0))
    updates.take(1, 1, Push(torch.tensor([1.0]), 1, 1.0))
    assert parameter.item() == 0.0
    updates.take(0, 0, Push(torch.tensor([4.0]), 3, 1.0))
    assert parameter.item() == -2.0
    updates.take(0, 1, Push(torch.tensor([1.0]), 1, 1.0))
    assert parameter.item() == -3.0
    assert seen == [0, 1]


class Hanging(Unwatched):
    """Rank 2 stops in its second step, and reports it."""

    def __init__(self, fifo: str) -> None:
        self._fifo = Path(fifo)

    def enter(self, step: int, phase: str) -> None:
        if dist.get_rank() == 2 and (step, phase) == (2, "training"):
            self._fifo.write_text("hangs")
            threading.Event().wait(TIMEOUT_S)


def served_until_one_is_lost(fifo: str) -> str:
    """Return how training ended on this rank."""
    sections = {"faults": {"collective_timeout_s": TIMEOUT_S}, "asynchrony": {"staleness": 1}}
    try:
        served(sections, lambda: Hanging(fifo))
    except TrainingError as error:
        return str(error)
    return "well"


def test_a_killed_worker_is_named_at_once(tmp_path: Path) -> None:
    """This happens long before collectives time out; the other worker learns of it too."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with started_ranks(served_until_one_is_lost, 3, str(fifo), timeout_s=TIMEOUT_S) as ranks:
        assert fifo.read_text() == "hangs"
        ranks[2].process.kill()
        server, other = (rank.result(TIMEOUT_S / 2) for rank in ranks[:2])
    assert server.startswith(f"worker 1 (rank 2) was lost after clock 1, or was silent for {TIMEOUT_S:g} s: ")
    assert other.startswith("the parameter server has stopped, because a worker was lost: rank 0 says which")
