"""Jobs that could not keep their guarantee are refused before a process starts, each with its reason; others train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import nn

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
        {"model": {"lora": {"rank": 2}, "tied_embeddings": True}},
        {"data_parallel": {"method": "zero3"}},
        {"privacy": {**PRIVATE, "mode": "hooks"}, "model": {"tied_embeddings": True}},
        {"model": {"kind": "vision", "vocab": 10}},
    ],
)
def test_the_rest_is_not(sections: dict[str, Any]) -> None:
    check_layout(job(**sections), 2)


class Tied(nn.Module):
    """A language model of someone's own, whose output projection is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.output = nn.Linear(8, 16, bias=False)
        self.output.weight = self.embedding.weight


def tied(_settings: Mapping[str, object]) -> nn.Module:
    return Tied()


def frozen(_settings: Mapping[str, object]) -> nn.Module:
    module = Tied()
    module.embedding.weight.requires_grad_(False)
    return module


def test_a_tied_parameter_of_any_kind_of_model_is_refused_if_it_is_trained() -> None:
    own = {"kind": f"{__name__}:tied"}
    with pytest.raises(
        LayoutError, match=r"embedding\.weight, which is output\.weight too \(tied\), with privacy\.mode"
    ):
        check_layout(SiloJob.model_validate(small(privacy=PRIVATE) | {"model": own}), 1)
    hooks = small(privacy={**PRIVATE, "mode": "hooks"}) | {"model": own}
    check_layout(SiloJob.model_validate(hooks), 1)
    other = {"kind": f"{__name__}:frozen"}
    check_layout(SiloJob.model_validate(small(privacy=PRIVATE) | {"model": other}), 1)
