"""Pipeline schedules: how long ranks wait, how many micro-batches they hold, and which numbers they support.

Times are of one micro-batch through all stages of one rank: ``F`` forward, ``I`` backward to the input, ``W`` backward
to the weights. ``P`` ranks of ``v`` stages each process ``m`` micro-batches. Where PyTorch's schedules follow the
papers, the formulas are the papers'; elsewhere they describe PyTorch's own orders.
``tests/datacenter/plan/test_bubble.py`` simulates those orders action by action and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from atoll.datacenter.job.parallel import PipelineSchedule
from atoll.datacenter.sizing.formula import Figure, given, largest

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEDULES: tuple[PipelineSchedule, ...] = get_args(PipelineSchedule)
SINGLE: frozenset[PipelineSchedule] = frozenset({"gpipe", "1f1b"})
"""Schedules with one stage per rank."""
V_SHAPED: frozenset[PipelineSchedule] = frozenset({"zbv", "dualpipev"})
"""Schedules with two stages per rank: ``r`` and ``2P - 1 - r``."""
SPLIT: frozenset[PipelineSchedule] = frozenset({"interleaved_zero_bubble", "zbv", "dualpipev"})
"""Schedules with two-part backward passes, which PyTorch refuses for compiled stages."""
_ROUNDS: frozenset[PipelineSchedule] = frozenset({"interleaved", "interleaved_zero_bubble"})

_SOURCES: dict[PipelineSchedule, str] = {
    "gpipe": "Huang et al. 2019, section 2.3",
    "1f1b": "Narayanan et al. 2021, section 2.2.1",
    "interleaved": "Narayanan et al. 2021, section 2.2.2",
    "looped_bfs": "Lamy-Poirier 2022, section 4",
    "interleaved_zero_bubble": "Qi et al. 2024, table 1 (ZB-H1), over v stages",
    "zbv": "Qi et al. 2024, section 6; PyTorch's order, for I ≥ F ≥ W",
    "dualpipev": "DeepSeek-AI 2024, section 3.2.1; PyTorch's order, at most this",
}


def bubble(
    schedule: PipelineSchedule, ranks: int, stages: int, forward: Figure, to_input: Figure, to_weights: Figure
) -> Figure:
    """Seconds that a rank waits in a step, given enough micro-batches (see ``problems``).

    Args:
        schedule: schedule of the pipeline.
        ranks: ``P``.
        stages: ``v``, stages on each rank.
        forward: ``F``, seconds.
        to_input: ``I``, seconds.
        to_weights: ``W``, seconds.
    """
    others = given("pipeline ranks - 1", ranks - 1)
    count = given("stages per rank", stages)
    match schedule:
        case "gpipe" | "1f1b" | "interleaved" | "looped_bfs":
            waited = others * (forward + to_input + to_weights) / count
        case "interleaved_zero_bubble":
            waited = others * (forward + to_input - to_weights) / count
        case "zbv":
            waited = others * largest(to_input, 2 * (to_input - to_weights)) / count
        case "dualpipev":
            waited = others * (2 * to_input - to_weights) / count
    return waited.called("bubble", "s", _SOURCES[schedule])


def held(schedule: PipelineSchedule, rank: int, ranks: int, stages: int, micro_batches: int) -> int:
    """Return the maximum number of stage passes whose activations a rank holds: forward done, backward not.

    Args:
        schedule: schedule of the pipeline.
        rank: number of the rank along ``pp``, from 0.
        ranks: ``P``.
        stages: ``v``.
        micro_batches: ``m``.
    """
    everything = stages * micro_batches
    match schedule:
        case "gpipe" | "looped_bfs":
            most = everything
        case "1f1b":
            most = ranks - rank
        case "interleaved":
            most = (stages - 1) * _round(ranks, micro_batches) + 2 * (ranks - 1 - rank) + 1
        case "interleaved_zero_bubble":
            most = (stages - 1) * _round(ranks, micro_batches) + ranks
        case "zbv":
            most = 2 * ranks
        case "dualpipev":
            most = 2 * ranks + 1
    return min(everything, most)


def problems(schedule: PipelineSchedule, ranks: int, stages: int, micro_batches: int) -> Iterator[str]:
    """Yield the problems of a schedule with these numbers of ranks, stages and micro-batches."""
    if schedule in SINGLE and stages != 1:
        yield f"{schedule} has one stage per rank, not {stages}"
    if schedule in V_SHAPED and stages != 2:
        yield f"{schedule} has two stages per rank, not {stages}"
    if schedule in _ROUNDS and micro_batches % max(1, micro_batches // ranks):
        yield (
            f"{schedule} goes in rounds of {ranks} micro-batches: {micro_batches} do not make "
            f"{micro_batches // ranks} equal ones"
        )
    if schedule == "dualpipev" and micro_batches < 2 * ranks:
        yield f"dualpipev needs at least 2 * {ranks} micro-batches, not {micro_batches}"


def _round(ranks: int, micro_batches: int) -> int:
    """Return the micro-batches of one round (PyTorch's interleaved schedules)."""
    return micro_batches // max(1, micro_batches // ranks)
