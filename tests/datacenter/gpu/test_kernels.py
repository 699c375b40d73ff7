"""Kernels that only a GPU has, beside plain products in float32."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from atoll.datacenter.mesh import join_world
from atoll.datacenter.models.documents import attend, document_mask
from atoll.datacenter.parallel.attention_blocks import FlashOnGpu, Plain
from atoll.datacenter.parallel.ring import RingAttention
from tests.patience import WAIT_S

HALF_OFF = 1e-2
"""Norm of the error over the norm of the wanted tensor: operands in 16 bits."""


def off(found: Tensor, wanted: Tensor) -> float:
    error = (found.double() - wanted.double()).norm() / wanted.double().norm()
    return float(error)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def backward(result: Tensor) -> None:
    result.float().square().sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def drawn(sequence: int, heads: tuple[int, int, int] = (8, 2, 2), width: int = 64) -> list[Tensor]:
    """Queries, keys and values in bfloat16, ``[batch, heads, sequence, head_dim]``."""
    shape = [(2, count, sequence, width) for count in heads]
    return [torch.randn(one, device="cuda", dtype=torch.bfloat16) for one in shape]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(8, 8, 8), (8, 2, 2)])
def test_a_fused_block_is_the_plain_one(heads: tuple[int, int, int], *, causal: bool) -> None:
    query, key, value = drawn(512, heads)
    wanted, sums = Plain().forward(query.float(), key.float(), value.float(), causal=causal)
    found, logs = FlashOnGpu().forward(query, key, value, causal=causal)
    assert off(found, wanted) < HALF_OFF
    assert off(logs, sums) < HALF_OFF
    gradient = torch.randn_like(query)
    of_found = FlashOnGpu().backward(gradient, query, key, value, found, logs, causal=causal)
    of_wanted = Plain().backward(
        gradient.float(), query.float(), key.float(), value.float(), wanted, sums, causal=causal
    )
    for one, other in zip(of_found, of_wanted, strict=True):
        assert off(one, other) < HALF_OFF


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_ring_attention_of_one_rank_is_causal_attention(*, compiled: bool) -> None:
    with join_world(WAIT_S):
        assert dist.get_backend() == "nccl"
        inputs = [one.transpose(1, 2).contiguous().requires_grad_() for one in drawn(512)]
        ring = RingAttention(dist.distributed_c10d._get_default_group(), fused=True)
        found = (torch.compile(ring) if compiled else ring)(*inputs)
        backward(found)
        whole = [one.detach().float().transpose(1, 2).requires_grad_() for one in inputs]
        wanted = causal_attention(*whole)
        backward(wanted)
        assert off(found, wanted.transpose(1, 2)) < HALF_OFF
        for one, other in zip(inputs, whole, strict=True):
            assert one.grad is not None
            assert other.grad is not None
            assert off(one.grad, other.grad.transpose(1, 2)) < 2 * HALF_OFF


def test_attention_within_documents_is_that_of_each_document_alone() -> None:
    """FlexAttention, forward and backward."""
    query, key, value = (one.requires_grad_() for one in drawn(512))
    cuts = [0, 100, 101, 384, 512]
    documents = torch.zeros(2, 512, dtype=torch.int64, device="cuda")
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        documents[:, start:end] = number
    found = attend(query, key, value, document_mask(documents))
    backward(found)
    whole = [one.detach().float().requires_grad_() for one in (query, key, value)]
    parts = [causal_attention(*(one[:, :, start:end] for one in whole)) for start, end in itertools.pairwise(cuts)]
    wanted = torch.cat(parts, dim=2)
    backward(wanted)
    assert off(found, wanted) < HALF_OFF
    for one, other in zip((query, key, value), whole, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert off(one.grad, other.grad) < 2 * HALF_OFF
