"""Sequences cut over ranks give the losses and parameters of one process (float32, ``training.STEPS`` of AdamW).

And with compiled blocks every parameter gets the gradient of one process whose blocks are not compiled.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll.datacenter.models.llama import CausalAttention
from atoll.datacenter.parallel.context import SequenceShare
from atoll.datacenter.parallel.ring import RingAttention
from tests.datacenter.marks import needs_torch_2_13
from tests.datacenter.ranks import run_ranks
from tests.datacenter.training import (
    assert_same_gradients,
    assert_same_together,
    gradients,
    method,
    small_in_two,
    train,
)

RING = {"context_parallel": {"method": "ring"}}
ZERO2, ZERO3 = method("zero2"), method("zero3")
FOUR = {"model": {"kv_heads": 4}}
every_layout = pytest.mark.every_layout


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"mesh": {"cp": 2}}, id="ulysses-2"),
        pytest.param(4, {"mesh": {"cp": 4}, "model": {"kv_heads": 4}}, id="ulysses-4", marks=every_layout),
        pytest.param(2, {"mesh": {"cp": 2}, **RING}, id="ring-2", marks=every_layout),
        pytest.param(4, {"mesh": {"cp": 4}, "data_parallel": ZERO3, **RING}, id="ring-4-zero3"),
        pytest.param(4, {"mesh": {"cp": 2}, "data_parallel": ZERO3}, id="ulysses-2-zero3-2", marks=every_layout),
        pytest.param(4, {"mesh": {"cp": 2, "tp": 2}, **FOUR}, id="ulysses-2-tp-2", marks=every_layout),
        pytest.param(4, {"mesh": {"cp": 2, "tp": 2}, **RING}, id="ring-2-tp-2", marks=every_layout),
        pytest.param(
            4,
            {"mesh": {"pp": 2, "cp": 2}, "batch": {"micro_batch": 1}, "data_parallel": ZERO2, **RING},
            id="pp-2-ring-2",
            marks=every_layout,
        ),
        pytest.param(
            8,
            {"mesh": {"pp": 2, "cp": 2, "tp": 2}, "batch": {"micro_batch": 1}, **FOUR},
            id="pp-2-ulysses-2-tp-2",
            marks=every_layout,
        ),
    ],
)
def test_equal_to_one_process(ranks: int, sections: dict[str, Any]) -> None:
    (alone,) = run_ranks(train, 1, small_in_two(1, model=sections.get("model", {})))
    assert_same_together(run_ranks(train, ranks, small_in_two(ranks, **sections)), alone)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=every_layout)])
@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"mesh": {"cp": 2}}, id="ulysses-2", marks=every_layout),
        pytest.param(2, {"mesh": {"cp": 2}, **RING}, id="ring-2", marks=needs_torch_2_13),
        pytest.param(
            4, {"mesh": {"cp": 2, "tp": 2}, "model": {"kv_heads": 4}}, id="ulysses-2-tp-2", marks=every_layout
        ),
        pytest.param(4, {"mesh": {"cp": 2, "tp": 2}, **RING}, id="ring-2-tp-2", marks=[every_layout, needs_torch_2_13]),
        pytest.param(4, {"mesh": {"cp": 2}, "data_parallel": ZERO3}, id="ulysses-2-zero3-2", marks=every_layout),
        pytest.param(
            4,
            {"mesh": {"cp": 4}, "data_parallel": ZERO3, **RING},
            id="ring-4-zero3",
            marks=[every_layout, needs_torch_2_13],
        ),
        pytest.param(
            4,
            {"mesh": {"pp": 2, "cp": 2}, "batch": {"micro_batch": 1}, "data_parallel": ZERO2, **RING},
            id="pp-2-ring-2",
            marks=[every_layout, needs_torch_2_13],
        ),
    ],
)
def test_compiled_gradient_of_every_parameter_is_that_of_one_process(
    ranks: int, sections: dict[str, Any], backend: str
) -> None:
    (alone,) = run_ranks(gradients, 1, small_in_two(1, model=sections.get("model", {})))
    job = small_in_two(ranks, **sections | {"memory": {"compile": True}})
    assert_same_gradients(run_ranks(gradients, ranks, job, backend, timeout_s=300), alone)


def shares() -> dict[str, Any]:
    """Return positions and labels of this rank's part, and ring attention over the parts."""
    group = dist.group.WORLD
    assert group is not None
    ring, straight = SequenceShare(group, 2), SequenceShare(group, 1)
    counts = torch.tensor([[10**piece] for piece in ring.numbers(group.rank())])
    before, total = ring(counts)
    drawn = torch.Generator().manual_seed(0)
    whole = [torch.randn(2, 16, heads, 8, generator=drawn) for heads in (6, 2, 2)]
    parts = [part.index_select(1, ring.positions(8, part.device)).requires_grad_() for part in whole]
    spread = [part.transpose(-1, -2).contiguous().transpose(-1, -2) for part in parts]  # no head lies together
    mixed = RingAttention(group)(*spread)
    mixed.square().sum().backward()
    return {
        "positions": ring.positions(8, torch.device("cpu")),
        "straight": straight.positions(8, torch.device("cpu")),
        "before": before,
        "total": total,
        "mixed": mixed.detach(),
        "gradients": [part.grad for part in parts],
    }


def test_ring_attention_is_attention() -> None:
    drawn = torch.Generator().manual_seed(0)
    whole = [torch.randn(2, 16, heads, 8, generator=drawn).requires_grad_() for heads in (6, 2, 2)]
    wanted = CausalAttention()(*whole)
    wanted.square().sum().backward()
    found = run_ranks(shares, 2)
    assert [one["positions"].tolist() for one in found] == [[0, 1, 2, 3, 12, 13, 14, 15], [*range(4, 12)]]
    assert [one["straight"].tolist() for one in found] == [[*range(8)], [*range(8, 16)]]
    assert [one["before"].flatten().tolist() for one in found] == [[0, 111], [1, 11]]
    assert all(one["total"].tolist() == [1111] for one in found)
    for one in found:
        torch.testing.assert_close(one["mixed"], wanted[:, one["positions"]], rtol=0, atol=2e-6)
        for part, gradient in zip(whole, one["gradients"], strict=True):
            assert part.grad is not None
            torch.testing.assert_close(gradient, part.grad[:, one["positions"]], rtol=0, atol=1e-5)
