"""PyTorch's own orders of pipeline schedules, played with given durations: what the closed forms are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining.schedules import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    get_schedule_class,
)

from atoll.datacenter.job.parallel import PipelineSchedule
from atoll.datacenter.parallel.pipeline.kinds import KINDS
from atoll.datacenter.plan.bubble import V_SHAPED

Order = dict[int, list[Any]]


@dataclass(frozen=True)
class Played:
    """How an order went.

    Attributes:
        seconds: until the last action of any rank was done.
        held: the most stage passes of each rank whose backward pass was still to come.
    """

    seconds: float
    held: list[int]


def order_of(schedule: PipelineSchedule, ranks: int, stages: int, micro_batches: int) -> Order:
    """Each rank's actions in order."""
    if schedule in {"gpipe", "1f1b"}:
        return {rank: _single(schedule, rank, ranks, micro_batches) for rank in range(ranks)}
    kind: Any = get_schedule_class(KINDS[schedule].torch_name)
    made = kind([_stage(stage, ranks, stages, schedule) for stage in _owned(0, ranks, stages, schedule)], micro_batches)
    return {rank: [one for action in actions for one in _flat(action)] for rank, actions in made.pipeline_order.items()}


def play(order: Order, stages: int, forward: float, to_input: float, to_weights: float) -> Played:
    """Run every action as soon as its rank and what it needs are ready.

    Args:
        order: of each rank.
        stages: of the whole model.
        forward: seconds of one stage.
        to_input: the same.
        to_weights: the same.
    """
    done: dict[tuple[int, str, int], float] = {}
    clocks, places = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0)
    moved = True
    while moved:
        moved = False
        for rank, actions in order.items():
            while places[rank] < len(actions):
                stage, kind, number = actions[places[rank]]
                needs, seconds = _needs(stage, kind, number, stages, (forward, to_input, to_weights))
                if any(need not in done for need in needs):
                    break
                clocks[rank] = max([clocks[rank], *(done[need] for need in needs)]) + seconds
                done[stage, kind.replace("B", "I"), number] = clocks[rank]
                places[rank] += 1
                moved = True
    assert all(places[rank] == len(actions) for rank, actions in order.items()), "the order blocks itself"
    return Played(max(clocks.values()), [_held(order[rank]) for rank in sorted(order)])


def _needs(
    stage: int, kind: str, number: int, stages: int, seconds: tuple[float, float, float]
) -> tuple[list[tuple[int, str, int]], float]:
    forward, to_input, to_weights = seconds
    if kind == "F":
        return ([(stage - 1, "F", number)] if stage else []), forward
    if kind == "W":
        return [(stage, "I", number)], to_weights
    needs = [(stage, "F", number)] + ([(stage + 1, "I", number)] if stage < stages - 1 else [])
    return needs, to_input + (to_weights if kind == "B" else 0.0)


def _held(actions: list[Any]) -> int:
    now = most = 0
    for _, kind, _ in actions:
        now += {"F": 1, "I": 0, "W": -1, "B": -1}[kind]
        most = max(most, now)
    return most


def _single(schedule: PipelineSchedule, rank: int, ranks: int, micro_batches: int) -> list[Any]:
    """PyTorch writes these two as loops, not as orders."""
    ahead = micro_batches if schedule == "gpipe" else min(micro_batches, ranks - rank)
    actions = [(rank, "F", number) for number in range(ahead)]
    for number in range(micro_batches):
        actions.append((rank, "B", number))
        if ahead + number < micro_batches:
            actions.append((rank, "F", ahead + number))
    return actions


def _owned(rank: int, ranks: int, stages: int, schedule: PipelineSchedule) -> list[int]:
    if schedule in V_SHAPED:
        return [rank, 2 * ranks - 1 - rank]
    return [rank + ranks * number for number in range(stages)]


def _stage(number: int, ranks: int, stages: int, schedule: PipelineSchedule) -> Any:
    """As much of a stage as making an order takes."""
    owners = {stage: rank for rank in range(ranks) for stage in _owned(rank, ranks, stages, schedule)}
    whole = ranks * stages
    return SimpleNamespace(
        group_rank=owners[number],
        group_size=ranks,
        stage_index=number,
        num_stages=whole,
        is_first=number == 0,
        is_last=number == whole - 1,
        stage_index_to_group_rank=owners,
        group=None,
        submod=None,
        device="cpu",
        has_backward=True,
    )


def _flat(action: Any) -> list[Any]:
    if action is None:
        return []
    if getattr(action, "sub_actions", None):
        return [one for part in action.sub_actions for one in _flat(part)]
    kinds = {FORWARD: "F", FULL_BACKWARD: "B", BACKWARD_INPUT: "I", BACKWARD_WEIGHT: "W"}
    return [(action.stage_index, kinds[action.computation_type], action.microbatch_index)]
