"""Counts of parameters against the real modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll.datacenter.errors import LayoutError
from atoll.datacenter.models import spec_of
from atoll.datacenter.models.lora import is_adapter
from atoll.datacenter.sizing.shape import shape_of
from tests.datacenter.plan.jobs import LLAMA_405B, SMALL, example, small

MOE = {"experts": 8, "top_k": 2, "expert_dim": 32, "shared_experts": 1}


@pytest.mark.parametrize("changed", [{}, {"kv_heads": 4}, {"tied_embeddings": True}, {"layers": 3, "ffn_dim": 192}])
def test_parameters_are_those_of_the_module(changed: dict[str, Any]) -> None:
    model = small(model=SMALL | changed).model
    with torch.device("meta"):
        module = spec_of(model).build()
    shape = shape_of(model)
    assert shape.parameters.value == sum(parameter.numel() for parameter in module.parameters())
    block = module.get_submodule("blocks.0")
    assert shape.block.value == sum(parameter.numel() for parameter in block.parameters())


def test_published_sizes() -> None:
    """Grattafiori et al. 2024, table 3, names them 8B, 70B and 405B."""
    assert shape_of(example("llama-8b").model).parameters.value == pytest.approx(8.03e9, rel=0.001)
    assert shape_of(example("llama-70b").model).parameters.value == pytest.approx(70.6e9, rel=0.001)
    assert shape_of(small(model=LLAMA_405B).model).parameters.value == pytest.approx(405.9e9, rel=0.001)


@pytest.mark.parametrize("targets", [["wq", "w2"], ["wk", "wo"], ["w1", "w2", "w3"]])
@pytest.mark.parametrize("changed", [{}, {"moe": MOE}, {"moe": MOE | {"shared_experts": 2}}])
def test_adapters_are_those_of_the_module(targets: list[str], changed: dict[str, Any]) -> None:
    model = small(model=SMALL | changed | {"lora": {"rank": 4, "targets": targets}}).model
    with torch.device("meta"):
        block = spec_of(model).build().get_submodule("blocks.0")
    found = sum(parameter.numel() for name, parameter in block.named_parameters() if is_adapter(name))
    assert shape_of(model).adapters.value == found > 0


def test_an_adapter_of_the_output_is_counted_once() -> None:
    lora = {"rank": 4, "targets": ["wq", "output"]}
    shape = shape_of(small(model=SMALL | {"lora": lora}).model)
    assert shape.trained_adapters.value == 2 * 4 * (64 + 64) + 4 * (64 + 256)


def test_models_of_other_kinds_are_refused() -> None:
    with pytest.raises(LayoutError, match=r'"mine:make".*only'):
        shape_of(small(model={"kind": "mine:make"}).model)
