"""Blocks are divided so that the most expensive stage is as cheap as possible."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
import torch

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.parallel import PipelineSection
from atoll.datacenter.models import spec_of
from atoll.datacenter.parallel.pipeline.deal import Deal, deal, stage_ranks
from atoll.datacenter.parallel.pipeline.split import build_stage
from tests.datacenter.training import small


def stage_costs(costs: list[float], ends: tuple[int, ...], first: float, last: float) -> list[float]:
    found = [sum(costs[begin:end]) for begin, end in pairwise((0, *ends))]
    found[0] += first
    found[-1] += last
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cut_has_a_cheaper_dearest_stage(seed: int) -> None:
    """Compared with every division; ties go to the most even one."""
    drawn = random.Random(seed)
    costs = [drawn.choice((1.0, 1.5, 2.0, 7.0)) for _ in range(drawn.randint(3, 9))]
    first, last, stages = drawn.random(), 3 * drawn.random(), drawn.randint(2, 3)

    def rank(ends: tuple[int, ...]) -> tuple[float, float]:
        found = stage_costs(costs, ends, first, last)
        return round(max(found), 6), round(sum(cost**2 for cost in found), 6)

    every = [(*ends, len(costs)) for ends in combinations(range(1, len(costs)), stages - 1)]
    found = tuple(blocks.stop for blocks in deal(costs, stages, first=first, last=last))
    assert rank(found) == min(rank(ends) for ends in every)


def test_embedding_and_output_count_as_a_block_each() -> None:
    assert [len(blocks) for blocks in deal([1.0] * 6, 4, first=1.0, last=1.0)] == [1, 2, 2, 1]


def test_a_dear_output_gets_fewer_blocks() -> None:
    assert [len(blocks) for blocks in deal([1.0] * 8, 2, first=0.1, last=4.0)] == [6, 2]


def test_fewer_blocks_than_stages() -> None:
    with pytest.raises(LayoutError, match="3 blocks cannot fill 4 pipeline stages"):
        deal([1.0] * 3, 4, first=1.0, last=1.0)


def test_where_stages_live() -> None:
    assert stage_ranks(PipelineSection(schedule="1f1b"), 3) == (0, 1, 2)
    assert stage_ranks(PipelineSection(schedule="interleaved", stages_per_rank=2), 3) == (0, 1, 2, 0, 1, 2)
    assert stage_ranks(PipelineSection(schedule="zbv"), 3) == (0, 1, 2, 2, 1, 0)


def test_a_stage_keeps_the_names_of_the_whole() -> None:
    job = SiloJob.model_validate(small(model={"layers": 4}))
    spec = spec_of(job.model)
    dealt = Deal((range(1), range(1, 3), range(3, 4)), (0, 1, 2))
    stages = [build_stage(spec, dealt, number) for number in range(3)]
    with torch.device("meta"):
        whole = {name for name, _ in spec.build().named_parameters()}
    names = [{name for name, _ in stage.named_parameters()} for stage in stages]
    assert set.union(*names) == whole
    assert sum(map(len, names)) == len(whole)
    assert {name.split(".")[0] for name in names[1]} == {"blocks"}
    assert {name.split(".")[1] for name in names[1]} == {"1", "2"}
