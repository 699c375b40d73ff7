from __future__ import annotations

from typing import Any

import pytest

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.job import SiloJob
from atoll.datacenter.machine import DATA_SHEETS
from atoll.datacenter.plan.automatic import choose_layout
from atoll.datacenter.plan.layout import Task, layout_of
from atoll.datacenter.plan.search import NothingFitsError, search
from atoll.datacenter.plan.step_time import Machine
from tests.datacenter.plan.jobs import LLAMA_405B, small

H100 = DATA_SHEETS["h100"]


def test_a_known_model_gets_the_fastest_layout_of_the_plan() -> None:
    job = small(optimiser={"lr": 1e-4})
    chosen = choose_layout(job, 8, H100)
    fastest = search(Task.of(job), 8, Machine.of(H100)).best[0].layout
    assert layout_of(chosen.job, 8) == chosen.layout == fastest
    assert chosen.job.optimiser.lr == 1e-4
    assert "the fastest of" in chosen.reason
    check_layout(chosen.job, 8)


def test_a_known_model_that_fits_no_layout_is_refused() -> None:
    job = small(model=LLAMA_405B, batch={"global_batch": 8, "sequence": 8192})
    with pytest.raises(NothingFitsError, match="none of"):
        choose_layout(job, 8, H100)


@pytest.mark.parametrize(
    ("batch", "ranks", "micro_batch", "method"),
    [
        ({"global_batch": 64, "micro_batch": 32}, 4, 16, "zero3"),
        ({"global_batch": 48, "micro_batch": 5}, 4, 4, "zero3"),
        ({"global_batch": 64, "micro_batch": 2}, 1, 2, "ddp"),
    ],
)
def test_a_model_of_another_kind_is_sharded(batch: dict[str, Any], ranks: int, micro_batch: int, method: str) -> None:
    job = SiloJob.model_validate(
        {"job": {"name": "own", "steps": 1}, "model": {"kind": "mine:module"}, "data": {"source": "mine:dataset"}}
        | {"batch": batch, "mesh": {"dp_replicate": 2}}
    )
    chosen = choose_layout(job, ranks, H100)
    assert (chosen.job.data_parallel.method, chosen.job.batch.micro_batch) == (method, micro_batch)
    assert (chosen.job.mesh.dp_replicate, chosen.job.mesh.dp_shard) == (1, ranks)
    assert layout_of(chosen.job, ranks) == chosen.layout
    assert "mine:module" in chosen.reason
