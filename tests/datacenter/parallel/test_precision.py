"""Half precision: near float32, with master weights in float32, and a dynamic loss scale."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from atoll.datacenter.models import llama
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import method, small, train

NEAR = 3e-3


@pytest.fixture(scope="module")
def exact() -> list[float]:
    """Losses in float32."""
    losses: list[float] = run_ranks(train, 1, small())[0]["losses"]
    return losses


@pytest.mark.parametrize(
    ("compute", "sections"),
    [
        pytest.param("bfloat16", {}, id="ddp-bfloat16", marks=pytest.mark.every_case),
        pytest.param("float16", {}, id="ddp-float16"),
        pytest.param("bfloat16", {"data_parallel": method("zero3")}, id="zero3-bfloat16"),
        pytest.param("float16", {"data_parallel": method("zero3")}, id="zero3-float16", marks=pytest.mark.every_case),
    ],
)
def test_near_float32(compute: str, sections: dict[str, Any], exact: list[float]) -> None:
    found = run_ranks(train, 2, small(precision={"compute": compute}, **sections))
    assert found[0]["losses"] == pytest.approx(exact, abs=NEAR)
    assert found[0]["losses"] != exact
    for one in found:
        assert {value.dtype for value in one["parameters"].values()} == {torch.float32}


def furthest_angle(sections: dict[str, Any]) -> float:
    """Largest difference of a cosine or sine that a block computed with from that in float64."""
    furthest, rotate = 0.0, llama.rotate

    def noting(heads: Tensor, angles: Tensor) -> Tensor:
        nonlocal furthest
        half = heads.shape[-1] // 2
        speeds = 10_000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        exact = torch.outer(torch.arange(heads.shape[1], dtype=torch.float64), speeds)
        found = angles.view(torch.float32) if angles.dtype is torch.int32 else angles
        furthest = max(furthest, (found - torch.stack((exact.cos(), exact.sin()))).abs().max().item())
        return rotate(heads, angles)

    with patch.object(llama, "rotate", noting):
        train(sections, 1)
    return furthest


@pytest.mark.parametrize("name", ["ddp", "zero3"])
def test_rotary_angles_stay_in_float32(name: str) -> None:
    sections = small(precision={"compute": "bfloat16"}, data_parallel=method(name), batch={"sequence": 64})
    assert max(run_ranks(furthest_angle, 2, sections)) < 1e-5


def test_a_loss_scale_beyond_float16_gives_way_on_every_rank_alike() -> None:
    sections = small(
        model={"layers": 1},
        batch={"global_batch": 4, "micro_batch": 2},
        precision={"compute": "float16", "initial_scale": 2.0**40},
        data_parallel=method("zero3"),
    )
    one, other = run_ranks(train, 2, sections, 30)
    assert one["norms"] == pytest.approx(other["norms"], nan_ok=True)
    skipped = [norm for norm in one["norms"] if not norm < float("inf")]
    assert 10 < len(skipped) < 30
    assert one["norms"][-1] < float("inf")
