"""A pipeline that cannot run is refused with the numbers."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.datacenter.checks.pipeline import check_pipeline
from atoll.datacenter.job import SiloJob
from atoll.datacenter.mesh import ParallelDims
from tests.datacenter.training import small


def problems(ranks: int = 2, **sections: dict[str, Any]) -> list[str]:
    sections = {"batch": {"micro_batch": 1}, "mesh": {"pp": 2}, "model": {"layers": 4}} | sections
    job = SiloJob.model_validate(small(**sections))
    return list(check_pipeline(job, ParallelDims.of(job.mesh, ranks)))


def pipe(schedule: str, **more: int) -> dict[str, Any]:
    return {"schedule": schedule, **more}


@pytest.mark.parametrize(
    ("sections", "wanted"),
    [
        pytest.param(
            {"mesh": {"pp": 8}, "ranks": 8},
            "4 blocks cannot fill 8 pipeline stages (pp 8 * 1 on each rank): each needs at least one",
            id="blocks",
        ),
        pytest.param(
            {"pipeline": pipe("interleaved", stages_per_rank=3)},
            "4 blocks cannot fill 6 pipeline stages (pp 2 * 3 on each rank)",
            id="blocks of a loop",
        ),
        pytest.param(
            {"pipeline": pipe("1f1b", stages_per_rank=2)},
            'pipeline.stages_per_rank = 2: schedule "1f1b" has 1 on each rank; schedules that loop are interleaved,',
            id="no loop",
        ),
        pytest.param(
            {"pipeline": pipe("zbv", stages_per_rank=1)},
            'pipeline.stages_per_rank = 1: schedule "zbv" has 2 on each rank; leave it out',
            id="V",
        ),
        pytest.param(
            {"batch": {"micro_batch": 8}},
            'schedule "1f1b" of 2 stages needs at least 2 micro-batches, there are 1 micro-batches '
            "(batch.global_batch 8 / (1 data-parallel ranks * batch.micro_batch 8))",
            id="1f1b starved",
        ),
        pytest.param(
            {"batch": {"micro_batch": 4}, "pipeline": pipe("dualpipev")},
            'schedule "dualpipev" of 4 stages needs at least 4 micro-batches, there are 2 micro-batches',
            id="dualpipev starved",
        ),
        pytest.param(
            {"batch": {"micro_batch": 1, "global_batch": 7}, "pipeline": pipe("interleaved", stages_per_rank=2)},
            'schedule "interleaved" sends micro-batches round pp 2 ranks in 3 rounds, which do not divide 7 micro',
            id="rounds",
        ),
        pytest.param(
            {"model": {"tied_embeddings": True}},
            "tok_embeddings.weight and output.weight are one parameter, but pipeline stages would separate them",
            id="tied",
        ),
        pytest.param({"data_parallel": {"uneven": True}}, "data_parallel.uneven = true", id="uneven"),
        pytest.param(
            {"data_parallel": {"method": "zero3"}, "pipeline": pipe("zbv")},
            'data_parallel.method = "zero3" frees parameters before the backward pass, and schedule "zbv" would',
            id="zero3",
        ),
        pytest.param(
            {"memory": {"checkpointing": "selective"}, "pipeline": pipe("dualpipev")},
            'memory.checkpointing = "selective" allows one backward pass, but schedule "dualpipev" makes two',
            id="selective",
        ),
    ],
)
def test_refused_with_the_numbers(sections: dict[str, Any], wanted: str) -> None:
    found = problems(**sections)
    assert len(found) == 1, found
    assert wanted in found[0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "looped_bfs", "zbv", "dualpipev"])
def test_fits(schedule: str) -> None:
    assert not problems(pipeline=pipe(schedule))


def test_without_stages_nothing_is_asked() -> None:
    assert not problems(1, mesh={"pp": 1}, model={"tied_embeddings": True})


@pytest.mark.parametrize(("able", "count"), [(True, 0), (False, 1)])
def test_compiled_blocks_with_a_split_backward_pass_need_a_newer_torch(
    able: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.datacenter.checks.pipeline.COMPILES_SPLIT_BACKWARD", able)
    found = problems(memory={"compile": True}, pipeline=pipe("dualpipev"))
    assert len(found) == count
    assert all("needs torch 2.13" in one for one in found)
