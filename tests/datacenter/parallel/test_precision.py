"""Half precision: near float32, with master weights in float32, and a dynamic loss scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import method, small, train

NEAR = 3e-3


@pytest.fixture(scope="module")
def exact() -> list[float]:
    """Losses in float32."""
    losses: list[float] = run_ranks(train, 1, small())[0]["losses"]
    return losses


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
@pytest.mark.parametrize("sections", [{}, {"data_parallel": method("zero3")}], ids=["ddp", "zero3"])
def test_near_float32(compute: str, sections: dict[str, Any], exact: list[float]) -> None:
    found = run_ranks(train, 2, small(precision={"compute": compute}, **sections))
    assert found[0]["losses"] == pytest.approx(exact, abs=NEAR)
    assert found[0]["losses"] != exact
    for one in found:
        assert {value.dtype for value in one["parameters"].values()} == {torch.float32}


def test_a_loss_scale_beyond_float16_gives_way_on_every_rank_alike() -> None:
    sections = small(precision={"compute": "float16", "initial_scale": 2.0**40}, data_parallel=method("zero3"))
    one, other = run_ranks(train, 2, sections, 30)
    assert one["norms"] == pytest.approx(other["norms"], nan_ok=True)
    skipped = [norm for norm in one["norms"] if not norm < float("inf")]
    assert 10 < len(skipped) < 30
    assert one["norms"][-1] < float("inf")
