"""DP-SGD of adapters: gradients of single samples, and training as without privacy when nothing is clipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from atoll.datacenter.job.model import LoraSection
from atoll.datacenter.models.lora import LoraLinear
from atoll.datacenter.privacy.adapters import adapter_gradients
from tests.datacenter.privacy.test_passes import HUGE, LIMIT, clipped_one_by_one, gradients, private, train
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import assert_same, small

ADAPTED: dict[str, Any] = {
    "model": {"lora": {"rank": 4, "targets": ["wq", "wv", "wo", "w1", "w2"]}},
    "optimiser": {"epsilon": 1e-6},
}


def test_gradients_of_samples_are_those_of_one_at_a_time() -> None:
    torch.manual_seed(3)
    layer = LoraLinear(nn.Linear(6, 5, bias=False), LoraSection(rank=2))
    nn.init.normal_(layer.lora_a)
    nn.init.normal_(layer.lora_b)
    inputs, outer = torch.randn(3, 4, 6), torch.randn(3, 4, 5)
    found = adapter_gradients(layer, [inputs], outer)
    for sample in range(3):
        wanted = torch.autograd.grad((layer(inputs[sample]) * outer[sample]).sum(), [layer.lora_a, layer.lora_b])
        torch.testing.assert_close(found[layer.lora_a][sample], wanted[0])
        torch.testing.assert_close(found[layer.lora_b][sample], wanted[1])


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """One process without privacy."""
    found: dict[str, Any] = run_ranks(train, 1, small(**ADAPTED))[0]
    return found


@pytest.mark.parametrize(
    ("ranks", "mode", "sections"),
    [
        pytest.param(1, "hooks", {}, id="hooks"),
        pytest.param(2, "ghost", {}, id="ghost-ddp-2"),
        pytest.param(2, "ghost", {"data_parallel": {"method": "zero3"}}, id="ghost-zero3-2"),
    ],
)
def test_without_noise_and_clipping_it_is_plain_training(
    ranks: int, mode: str, sections: dict[str, Any], plain: dict[str, Any]
) -> None:
    for found in run_ranks(train, ranks, private(HUGE, 0.0, mode, **ADAPTED, **sections)):
        assert_same(found, plain)


@pytest.mark.parametrize(("mode", "tied"), [("ghost", False), ("ghost", True), ("hooks", False)])
def test_each_sequence_is_clipped_by_itself(mode: str, tied: bool) -> None:
    limit = LIMIT / 100
    adapted = ADAPTED | {"model": ADAPTED["model"] | {"tied_embeddings": tied}}
    (wanted,) = run_ranks(clipped_one_by_one, 1, limit, adapted)
    (found,) = run_ranks(gradients, 1, private(limit, 0.0, mode, **adapted))
    norm = torch.stack([value.norm() for value in wanted.values()]).norm()
    assert norm <= limit + 1e-9
    clipped = {name.removeprefix("module."): value for name, value in found["whole"].items()}
    assert clipped.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(clipped[name], value, rtol=1e-4, atol=1e-8)
