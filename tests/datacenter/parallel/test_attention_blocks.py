"""Blocks of attention, by fused kernels and by plain products, add up to attention over all keys."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from atoll.datacenter.models.llama import CausalAttention
from atoll.datacenter.parallel.attention_blocks import FlashOnCpu, FlashOnGpu, Kernels, Plain, fits_gpu, kernels_for

HALF, WHOLE = 8, 16
KERNELS = [pytest.param(FlashOnCpu(), id="fused"), pytest.param(Plain(), id="plain")]


def drawn() -> list[Tensor]:
    """Queries of six heads, keys and values of two, ``[batch, heads, sequence, head_dim]``."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, WHOLE, 8, generator=generator, requires_grad=True) for heads in (6, 2, 2)]


@pytest.mark.parametrize("kernels", KERNELS)
def test_two_blocks_are_attention_to_all_keys(kernels: Kernels) -> None:
    query, key, value = drawn()
    wanted = CausalAttention()(*(one.transpose(1, 2) for one in (query, key, value))).transpose(1, 2)
    wanted.square().sum().backward()
    late = slice(HALF, None)
    with torch.no_grad():
        own = kernels.forward(query[:, :, late], key[:, :, late], value[:, :, late], causal=True)
        early = kernels.forward(query[:, :, late], key[:, :, :HALF], value[:, :, :HALF], causal=False)
        logs = torch.logaddexp(own[1], early[1])
        first, second = (one * (its - logs).exp()[..., None] for one, its in (own, early))
        mixed = first + second
        torch.testing.assert_close(mixed, wanted[:, :, late], rtol=0, atol=1e-6)
        gradient = 2 * wanted[:, :, late].detach()
        shared = (gradient, query[:, :, late])
        of_own = kernels.backward(*shared, key[:, :, late], value[:, :, late], mixed, logs, causal=True)
        of_early = kernels.backward(*shared, key[:, :, :HALF], value[:, :, :HALF], mixed, logs, causal=False)
    assert query.grad is not None
    assert key.grad is not None
    assert value.grad is not None
    torch.testing.assert_close(of_own[0] + of_early[0], query.grad[:, :, late], rtol=0, atol=1e-5)
    for found, whole in zip(of_own[1:], (key.grad, value.grad), strict=True):
        torch.testing.assert_close(found, whole[:, :, late], rtol=0, atol=1e-5)


def test_fused_and_plain_are_near_in_bfloat16() -> None:
    with torch.no_grad():
        half = [one.to(torch.bfloat16) for one in drawn()]
        found, wanted = (one.forward(*half, causal=True) for one in (FlashOnCpu(), Plain()))
    assert found[0].dtype == wanted[0].dtype == torch.bfloat16
    assert found[1].dtype == wanted[1].dtype == torch.float32
    torch.testing.assert_close(found[0].float(), wanted[0].float(), rtol=0, atol=0.03)
    torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-2)


def test_fused_kernels_take_float64() -> None:
    query, key, value = drawn()
    with torch.no_grad():
        whole = (query.double(), key.double(), value.double())
        found, wanted = FlashOnCpu().forward(*whole, causal=True), Plain().forward(query, key, value, causal=True)
        torch.testing.assert_close(found[0].float(), wanted[0], rtol=0, atol=1e-6)
        of_found = FlashOnCpu().backward(found[0], *whole, found[0], found[1], causal=True)
        of_wanted = Plain().backward(wanted[0], query, key, value, wanted[0], wanted[1], causal=True)
    for one, other in zip(of_found, of_wanted, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0, atol=1e-5)


def test_kernels_by_device_format_and_width() -> None:
    assert isinstance(kernels_for(torch.zeros(1, 1, 1, 9), fused=True), FlashOnCpu)
    assert isinstance(kernels_for(torch.zeros(1, 1, 1, 8), fused=False), Plain)
    assert isinstance(kernels_for(torch.zeros(1, 1, 1, 8, device="meta"), fused=True), Plain)
    for dtype, capability, wanted in (
        (torch.bfloat16, (8, 0), FlashOnGpu),
        (torch.float32, (9, 0), Plain),
        (torch.float16, (7, 5), Plain),
    ):
        with FakeTensorMode(), patch("torch.cuda.get_device_capability", return_value=capability):
            on_gpu = torch.zeros(1, 1, 1, 8, device="cuda:0", dtype=dtype)
            assert isinstance(kernels_for(on_gpu, fused=True), wanted)
    assert [fits_gpu(width) for width in (8, 12, 128, 256, 264)] == [True, False, True, True, False]
