"""Jobs that do not fit are refused with the numbers, before any process starts."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from tests.datacenter.training import small


def job(**sections: dict[str, Any]) -> SiloJob:
    return SiloJob.model_validate(small(**{"model": {"layers": 4}, **sections}))


@pytest.mark.parametrize(
    ("sections", "ranks", "says"),
    [
        ({}, 3, "global_batch = 8 is not a multiple of dp_replicate 1 * dp_shard 3 * micro_batch 2 = 6: set 12"),
        ({"data_parallel": {"uneven": True}}, 8, "less than one micro_batch = 2 for each of the 8 data-parallel ranks"),
        ({"mesh": {"tp": 4}}, 4, "mesh.tp = 4 does not divide model.kv_heads = 2"),
        ({"mesh": {"tp": 3}, "model": {"ffn_dim": 96}}, 3, "mesh.tp = 3 does not divide model.heads = 4"),
        ({"mesh": {"tp": 2}, "batch": {"sequence": 15}}, 2, "does not divide batch.sequence = 15"),
        ({"mesh": {"tp": 2}, "data_parallel": {"hook": "sign"}}, 2, "data_parallel.hook works on whole replicas only"),
        (
            {"precision": {"compute": "float8", "float8_gather": True}},
            2,
            'precision.float8_gather = true with data_parallel.method = "ddp": matrices are not gathered',
        ),
        (
            {"mesh": {"tp": 2}, "tensor_parallel": {"asynchronous": True}},
            2,
            "tensor_parallel.asynchronous = true is a transformation of compiled blocks: set memory.compile = true",
        ),
        (
            {"memory": {"checkpointing": "gathered"}},
            2,
            'memory.checkpointing = "gathered" with mesh.tp = 1 and tensor_parallel.sequence = true: nothing is',
        ),
        ({"mesh": {"pp": 8}, "batch": {"micro_batch": 1}}, 8, "4 blocks cannot fill 8 pipeline stages"),
        (
            {"mesh": {"dp_replicate": 2, "dp_shard": 1}, "data_parallel": {"method": "zero3"}},
            2,
            "shards nothing: set dp_shard",
        ),
    ],
)
def test_what_does_not_fit_is_refused(sections: dict[str, Any], ranks: int, says: str) -> None:
    with pytest.raises(LayoutError) as caught:
        check_layout(job(**sections), ranks)
    assert says in str(caught.value)


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(LayoutError) as caught:
        check_layout(job(mesh={"tp": 4}, batch={"global_batch": 7, "sequence": 15}), 4)
    assert len(caught.value.problems) == 3


def test_a_wrong_number_of_ranks_does_not_hide_what_fits_on_none() -> None:
    with pytest.raises(LayoutError) as caught:
        check_layout(job(mesh={"tp": 4}, batch={"sequence": 15}), 6)
    says = ("6 ranks are not a multiple of", "does not divide model.kv_heads", "does not divide batch.sequence = 15")
    assert all(word in problem for word, problem in zip(says, caught.value.problems, strict=True))


def test_what_fits_passes() -> None:
    assert check_layout(job(mesh={"tp": 2}), 4).batch == 2
    assert check_layout(job(data_parallel={"uneven": True}), 3).batch == 3
    assert check_layout(job(mesh={"tp": 2}, precision={"compute": "float8"}), 2).tp == 2
    asynchronous = job(mesh={"tp": 2}, tensor_parallel={"asynchronous": True}, memory={"compile": True})
    assert check_layout(asynchronous, 2).tp == 2
