"""Closed forms of pipeline schedules against PyTorch's own orders, played action by action."""

from __future__ import annotations

from typing import get_args

import pytest

from atoll.datacenter.job.parallel import PipelineSchedule
from atoll.datacenter.parallel.pipeline.kinds import KINDS
from atoll.datacenter.parallel.pipeline.order import order_of, play
from atoll.datacenter.plan.bubble import SINGLE, SPLIT, V_SHAPED, bubble, held, problems
from atoll.datacenter.sizing.formula import given

DURATIONS = [(1.0, 1.0, 1.0), (1.0, 1.5, 1.0), (2.0, 3.0, 1.5), (1.0, 2.0, 1.0)]
"""Forward, backward to the input (attention makes it longer), backward to the weights."""
SCHEDULES = get_args(PipelineSchedule)
SIZES = [(2, 4), (4, 8), (4, 16)]
"""Ranks, micro-batches."""


def stages_of(schedule: PipelineSchedule) -> list[int]:
    if schedule in SINGLE:
        return [1]
    return [2] if schedule in V_SHAPED else [2, 3]


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bubbles(schedule: PipelineSchedule, ranks: int, micro_batches: int) -> None:
    for stages in stages_of(schedule):
        order = order_of(schedule, ranks, stages, micro_batches)
        for forward, to_input, to_weights in DURATIONS:
            busy = micro_batches * stages * (forward + to_input + to_weights)
            waited = play(order, ranks * stages, forward, to_input, to_weights).seconds - busy
            whole = (given("F", stages * forward), given("I", stages * to_input), given("W", stages * to_weights))
            predicted = bubble(schedule, ranks, stages, *whole).value
            if schedule == "dualpipev":  # a bound: see its source
                assert waited <= predicted <= waited + (forward + to_input)
            else:
                assert predicted == pytest.approx(waited)


@pytest.mark.parametrize(("ranks", "micro_batches"), [*SIZES, (4, 6), (2, 5)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stage_passes_held(schedule: PipelineSchedule, ranks: int, micro_batches: int) -> None:
    for stages in stages_of(schedule):
        if any(problems(schedule, ranks, stages, micro_batches)):
            continue
        played = play(order_of(schedule, ranks, stages, micro_batches), ranks * stages, 1.0, 1.0, 1.0)
        predicted = [held(schedule, rank, ranks, stages, micro_batches) for rank in range(ranks)]
        if schedule == "zbv":  # its first rank holds less while micro-batches are few
            assert max(predicted) == max(played.held)
        else:
            assert predicted == played.held


def test_schedules_that_split_the_backward_pass_wait_less() -> None:
    """Qi et al. 2024, table 1; with more stages or split passes a rank waits less than with 1F1B."""
    passes = (given("F", 1.0), given("I", 1.2), given("W", 0.9))
    waits = {schedule: bubble(schedule, 4, 1 if schedule in SINGLE else 2, *passes).value for schedule in SCHEDULES}
    assert waits["zbv"] < waits["interleaved_zero_bubble"] < waits["interleaved"] < waits["1f1b"] == waits["gpipe"]


def test_kinds_agree_with_the_pipelines_own() -> None:
    for schedule, kind in KINDS.items():
        assert kind.v_shaped == (schedule in V_SHAPED)
        assert kind.splits_backward == (schedule in SPLIT)


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages", "micro_batches", "said"),
    [
        ("1f1b", 2, 2, 4, "one stage per rank, not 2"),
        ("zbv", 2, 1, 4, "two stages per rank, not 1"),
        ("interleaved", 4, 2, 9, "9 do not make 2 equal ones"),
        ("dualpipev", 4, 2, 6, "at least 2 \\* 4 micro-batches, not 6"),
    ],
)
def test_what_does_not_go_together(
    schedule: PipelineSchedule, ranks: int, stages: int, micro_batches: int, said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        assert not list(problems(schedule, ranks, stages, micro_batches))
