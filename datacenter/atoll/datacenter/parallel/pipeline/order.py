"""The order in which each rank computes under a schedule, as in PyTorch, and a simulation of how long it takes.

Nothing is sent or computed: this serves prediction, comparison and drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias

from torch.distributed.pipelining.schedules import get_schedule_class

from atoll.datacenter.job.parallel import PipelineSchedule, PipelineSection
from atoll.datacenter.parallel.pipeline.deal import stage_ranks
from atoll.datacenter.parallel.pipeline.kinds import KINDS

Pass: TypeAlias = Literal["F", "B", "I", "W"]
"""Forward; whole backward; backward to the input only; backward to the weights only."""
_HELD: Mapping[Pass, int] = {"F": 1, "B": -1, "I": 0, "W": -1}


class Action(NamedTuple):
    """One pass of one micro-batch through one stage."""

    stage: int
    kind: Pass
    micro_batch: int


Order: TypeAlias = dict[int, list[Action]]
"""Actions of each rank, first to last."""


class Span(NamedTuple):
    """When an action ran, in seconds from the start."""

    action: Action
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a simulation.

    Attributes:
        spans: spans of the actions, by rank.
    """

    spans: Sequence[Sequence[Span]]

    @property
    def seconds(self) -> float:
        """Time until the last action of any rank ends."""
        return max(spans[-1].end for spans in self.spans)

    @property
    def idle_share(self) -> float:
        """Share of the time in which a rank waits, mean over ranks."""
        busy = sum(span.end - span.begin for spans in self.spans for span in spans)
        return 1 - busy / (len(self.spans) * self.seconds)

    @property
    def held(self) -> list[int]:
        """Maximum number of stage passes, for each rank, whose backward pass has not run yet."""
        most = []
        for spans in self.spans:
            now = peak = 0
            for span in spans:
                now += _HELD[span.action.kind]
                peak = max(peak, now)
            most.append(peak)
        return most


def order_of(schedule: PipelineSchedule, ranks: int, stages: int, micro_batches: int) -> Order:
    """Return PyTorch's order.

    Args:
        schedule: the schedule.
        ranks: number of ranks along ``pp``.
        stages: stages on each rank.
        micro_batches: micro-batches of one step.

    Raises:
        ValueError: if the schedule does not support this number of micro-batches.
    """
    if not KINDS[schedule].several_stages:
        return {rank: _single(schedule, rank, ranks, micro_batches) for rank in range(ranks)}
    owners = stage_ranks(PipelineSection(schedule=schedule, stages_per_rank=stages), ranks)
    make: Any = get_schedule_class(KINDS[schedule].torch_name)
    made = make([_outline(stage, owners, ranks) for stage, owner in enumerate(owners) if owner == 0], micro_batches)
    return {rank: [one for action in actions for one in _flat(action)] for rank, actions in made.pipeline_order.items()}


def play(order: Order, stages: int, forward: float, to_input: float, to_weights: float) -> Played:
    """Start every action as soon as its rank is free and its input is available; sending takes no time.

    Args:
        order: actions of each rank.
        stages: stages of the whole model.
        forward: seconds of a forward pass of one stage.
        to_input: seconds of a backward pass to the input; a whole backward pass takes this and the next.
        to_weights: seconds of a backward pass to the weights.

    Raises:
        ValueError: if the order deadlocks.
    """
    seconds: Mapping[Pass, float] = {"F": forward, "B": to_input + to_weights, "I": to_input, "W": to_weights}
    done: dict[tuple[int, str, int], float] = {}
    spans: dict[int, list[Span]] = {rank: [] for rank in sorted(order)}
    left = sum(map(len, order.values()))
    while left:
        before = left
        for rank, actions in order.items():
            for action in actions[len(spans[rank]) :]:
                needs = _needs(action, stages)
                if any(need not in done for need in needs):
                    break
                free = spans[rank][-1].end if spans[rank] else 0.0
                begin = max([free, *(done[need] for need in needs)])
                end = begin + seconds[action.kind]
                spans[rank].append(Span(action, begin, end))
                done[action.stage, action.kind.replace("B", "I"), action.micro_batch] = end
                left -= 1
        if left == before:
            raise ValueError(f"the order deadlocks with {left} actions left")
    return Played(list(spans.values()))


def _needs(action: Action, stages: int) -> list[tuple[int, str, int]]:
    stage, kind, number = action
    if kind == "F":
        return [(stage - 1, "F", number)] if stage else []
    if kind == "W":
        return [(stage, "I", number)]
    return [(stage, "F", number)] + ([(stage + 1, "I", number)] if stage < stages - 1 else [])


def _single(schedule: PipelineSchedule, rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Return the order of the two schedules that PyTorch implements as loops."""
    ahead = micro_batches if schedule == "gpipe" else min(micro_batches, ranks - rank)
    actions = [Action(rank, "F", number) for number in range(ahead)]
    for number in range(micro_batches):
        actions.append(Action(rank, "B", number))
        if ahead + number < micro_batches:
            actions.append(Action(rank, "F", ahead + number))
    return actions


def _outline(stage: int, owners: tuple[int, ...], ranks: int) -> SimpleNamespace:
    """Return the part of a stage that PyTorch needs to make an order."""
    return SimpleNamespace(
        group_rank=owners[stage],
        group_size=ranks,
        stage_index=stage,
        num_stages=len(owners),
        is_first=stage == 0,
        is_last=stage == len(owners) - 1,
        stage_index_to_group_rank=dict(enumerate(owners)),
        group=None,
        submod=None,
        device="cpu",
        has_backward=True,
    )


def _flat(action: Any) -> list[Action]:
    """Convert PyTorch's action; overlapped passes run one after the other."""
    if action is None:
        return []
    if getattr(action, "sub_actions", None):
        return [one for part in action.sub_actions for one in _flat(part)]
    return [Action(action.stage_index, action.computation_type.value, action.microbatch_index)]
