"""Orders are PyTorch's own, and the pictures of them are up to date."""

from __future__ import annotations

from pathlib import Path
from typing import get_args
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.nn.functional import mse_loss

from atoll.datacenter.job.parallel import PipelineSchedule
from atoll.datacenter.parallel.pipeline.kinds import KINDS
from atoll.datacenter.parallel.pipeline.order import Action, order_of, play
from atoll.datacenter.parallel.pipeline.picture import pictures
from tests.datacenter.ranks import run_ranks

PICTURES = Path(__file__).parents[4] / "docs" / "datacenter"


@pytest.mark.parametrize("schedule", get_args(PipelineSchedule))
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8)])
def test_every_stage_sees_every_micro_batch_once(schedule: PipelineSchedule, ranks: int, micro_batches: int) -> None:
    stages = 2 if KINDS[schedule].several_stages else 1
    order = order_of(schedule, ranks, stages, micro_batches)
    actions = [action for rank in order.values() for action in rank]
    assert len(actions) == len(set(actions))
    every = {(stage, number) for stage in range(ranks * stages) for number in range(micro_batches)}
    assert {(stage, number) for stage, kind, number in actions if kind == "F"} == every
    assert {(stage, number) for stage, kind, number in actions if kind in {"B", "W"}} == every
    assert any(kind == "W" for _, kind, _ in actions) == KINDS[schedule].splits_backward


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        ("gpipe", 3 * 3),
        ("1f1b", 3 * 3),
        ("interleaved", 3 * 3 / 2),
        ("looped_bfs", 3 * 3 / 2),
        ("interleaved_zero_bubble", 3 / 2),
        ("zbv", 3 / 2),
        ("dualpipev", 3 / 2),
    ],
)
def test_bubble(schedule: PipelineSchedule, bubble: float) -> None:
    """Four ranks, eight micro-batches; forward and both halves of backward take 1 for all stages of a rank together.

    (P - 1)(F + I + W) (Narayanan et al. 2021, section 2.2.1), over v where a rank has v stages (2.2.2); split, (P -
    1)(F + I - W) / v (Qi et al. 2024, table 1).
    """
    stages = 2 if KINDS[schedule].several_stages else 1
    played = play(order_of(schedule, 4, stages, 8), 4 * stages, 1 / stages, 1 / stages, 1 / stages)
    assert played.seconds - 8 * 3 == pytest.approx(bubble)
    assert played.idle_share == pytest.approx(bubble / (8 * 3 + bubble))


def test_an_order_that_waits_for_itself() -> None:
    with pytest.raises(ValueError, match="deadlocks with 2 actions left"):
        play({0: [Action(0, "B", 0), Action(0, "F", 0)]}, 1, 1.0, 1.0, 1.0)


def _calls() -> dict[str, list[str]]:
    """Return the order of PyTorch's loops on this rank, for the two schedules that it does not write as orders."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs = (torch.ones(5, 2),) if rank == 0 else ()
    target = torch.ones(5, 2) if rank == ranks - 1 else None
    found = {}
    for name in ("GPipe", "1F1B"):
        stage, heard = PipelineStage(torch.nn.Linear(2, 2), rank, ranks, torch.device("cpu")), Mock()
        heard.attach_mock(forward := Mock(wraps=stage.forward_one_chunk), "F")
        heard.attach_mock(backward := Mock(wraps=stage.backward_one_chunk), "B")
        with patch.multiple(stage, forward_one_chunk=forward, backward_one_chunk=backward):
            get_schedule_class(name)(stage, 5, loss_fn=mse_loss).step(*inputs, target=target)
        found[name] = [f"{kind}{numbers[0]}" for kind, numbers, _ in heard.mock_calls]
    return found


def test_loops_of_pytorch_that_are_written_down_here() -> None:
    found = run_ranks(_calls, 2)
    schedules: tuple[PipelineSchedule, ...] = ("gpipe", "1f1b")
    for schedule in schedules:
        for rank, actions in order_of(schedule, 2, 1, 5).items():
            assert [f"{kind}{number}" for _, kind, number in actions] == found[rank][KINDS[schedule].torch_name]


def test_pictures_are_up_to_date() -> None:
    """``python -m atoll.datacenter.parallel.pipeline.picture docs/datacenter`` draws them."""
    for name, text in pictures():
        assert (PICTURES / name).read_text() == text, name
