"""Jobs that could not keep their guarantee are refused before a process starts, each with its reason; others train."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.datacenter.checks.layout import check_layout
from atoll.datacenter.errors import LayoutError
from atoll.datacenter.job import SiloJob
from tests.datacenter.training import small

PRIVATE = {"noise_multiplier": 1.0}


def job(**sections: dict[str, Any]) -> SiloJob:
    return SiloJob.model_validate(small(**{"privacy": PRIVATE, **sections}))


@pytest.mark.parametrize(
    ("ranks", "sections", "said"),
    [
        (2, {"mesh": {"pp": 2}}, r"mesh\.pp = 2 with \[privacy\]: a sequence's norm covers all layers"),
        (2, {"mesh": {"tp": 2}}, r"mesh\.tp = 2 with \[privacy\]"),
        (2, {"mesh": {"cp": 2}, "data_parallel": {"method": "zero3"}}, r"mesh\.cp = 2 with \[privacy\]"),
        (1, {"model": {"moe": {"experts": 2, "top_k": 1, "expert_dim": 8}}}, "no rule for routers"),
        (1, {"model": {"norm_offset": True}}, "is a OffsetRMSNorm, for which Opacus has no rule"),
        (1, {"model": {"tied_embeddings": True}}, "used twice"),
        (1, {"memory": {"checkpointing": "full"}}, "counted twice"),
        (1, {"memory": {"compile": True}}, r"memory\.compile with \[privacy\]"),
        (1, {"precision": {"compute": "bfloat16"}}, "norms would be rounded"),
        (2, {"data_parallel": {"hook": "bfloat16"}}, "after they are clipped"),
        (
            2,
            {"privacy": {**PRIVATE, "mode": "hooks"}, "data_parallel": {"method": "zero3"}},
            "per-sequence gradients need whole parameters",
        ),
    ],
)
def test_what_would_break_the_promise_is_refused(ranks: int, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        check_layout(job(**sections), ranks)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"lora": {"rank": 2}}},
        {"data_parallel": {"method": "zero3"}},
        {"privacy": {**PRIVATE, "mode": "hooks"}, "model": {"tied_embeddings": True}},
        {"model": {"kind": "vision", "vocab": 10}},
    ],
)
def test_the_rest_is_not(sections: dict[str, Any]) -> None:
    check_layout(job(**sections), 2)
