"""FLOPs by formula, against what PyTorch counts on the uncut model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from atoll.datacenter.job import SiloJob
from atoll.datacenter.job.model import ModelSection
from atoll.datacenter.metrics.flops import llama_flops
from atoll.datacenter.models import spec_of
from tests.datacenter.counted_flops import counted_flops

SIZES: dict[str, Any] = {"vocab": 96, "layers": 3, "dim": 48, "heads": 6, "kv_heads": 2, "ffn_dim": 80}


def section(**keys: Any) -> ModelSection:
    job = {"job": {"name": "small", "steps": 1}, "model": {**SIZES, **keys}}
    return SiloJob.model_validate(job).model


def counted(model: ModelSection, batch: int, sequence: int, device: str = "meta") -> tuple[float, int]:
    """FLOPs a token, and parameters, of the model itself; on the meta device nothing is computed."""
    with torch.device(device):
        built = spec_of(model).build()
        tokens = torch.zeros((batch, sequence), dtype=torch.long)
    for name, value in built.named_parameters():
        value.requires_grad_(model.lora is None or ".lora_" in name)

    def step() -> None:
        logits: Tensor = built(tokens)
        logits.sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    return counted_flops(step) / (batch * sequence), sum(value.numel() for value in built.parameters())


@pytest.mark.parametrize("keys", [{}, {"kv_heads": 6}, {"tied_embeddings": True}, {"ffn_dim": 128, "layers": 1}])
@pytest.mark.parametrize("sequence", [16, 128])
def test_the_formula_is_what_pytorch_counts(keys: dict[str, Any], sequence: int) -> None:
    model = section(**keys)
    found = llama_flops(model, sequence)
    assert (found.per_token, found.parameters) == counted(model, 2, sequence)
    assert found.active_parameters == found.parameters


def test_only_the_experts_that_a_token_goes_to_count() -> None:
    moe = {"experts": 8, "top_k": 2, "expert_dim": 32, "shared_experts": 1}
    dense, sparse = llama_flops(section(), 16), llama_flops(section(moe=moe), 16)
    feed_forward, expert, router = 3 * 48 * 80, 3 * 48 * 32, 48 * 8
    assert sparse.per_token - dense.per_token == 6 * 3 * (3 * expert + router - feed_forward)
    assert sparse.parameters - sparse.active_parameters == 3 * 6 * expert
    more = llama_flops(section(moe={**moe, "experts": 16}), 16)
    assert more.per_token - sparse.per_token == 6 * 3 * 8 * 48


@pytest.mark.parametrize("shared", [0, 1])
def test_with_experts_too_the_formula_is_what_pytorch_counts(shared: int) -> None:
    """Routing needs values, so these products are actually computed."""
    model = section(moe={"experts": 8, "top_k": 2, "expert_dim": 32, "shared_experts": shared})
    found = llama_flops(model, 16)
    assert (found.per_token, found.parameters) == counted(model, 2, 16, "cpu")


@pytest.mark.parametrize("layers", [1, 8])
def test_with_adapters_the_formula_counts_too_much_in_the_first_block_alone(layers: int) -> None:
    """Nothing before it learns: its three inputs need no gradient, nor its adapters' inputs, nor its keys."""
    model = section(layers=layers, lora={"rank": 4})
    queries, keys, mixing = 48 * 48, 48 * 16, 48 * 16
    too_much = 2 * (queries + 2 * keys + 2 * 4 * 48 + mixing)
    assert llama_flops(model, 16).per_token - counted(model, 2, 16)[0] == too_much


def test_frozen_weights_have_no_gradients_of_their_own() -> None:
    whole, adapted = llama_flops(section(), 16), llama_flops(section(lora={"rank": 4, "targets": ["wq", "w1"]}), 16)
    adapters = 3 * 4 * ((48 + 48) + (48 + 80))
    matrices = whole.parameters - 96 * 48 - 7 * 48
    assert adapted.parameters - whole.parameters == adapters
    assert whole.per_token - adapted.per_token == 2 * matrices - 6 * adapters


def test_the_formula_shows_its_numbers() -> None:
    found = llama_flops(section(), 16)
    assert found.formula.startswith("6 * active matrix weights ")
    assert found.formula.endswith(f"= {int(found.per_token):,}")


def test_70_billion_parameters_have_the_published_count() -> None:
    """Llama 2 70B (Touvron et al. 2023b, table 1): 80 layers of width 8192, 64 heads, 8 of keys, feed-forward 28672."""
    sizes = {"vocab": 32000, "layers": 80, "dim": 8192, "heads": 64, "kv_heads": 8, "ffn_dim": 28672}
    found = llama_flops(section(**sizes), 4096)
    assert found.parameters == 68_976_648_192
    assert found.per_token == pytest.approx(6 * (found.parameters - 32000 * 8192) + 12 * 80 * 8192 * 4096, rel=1e-4)
