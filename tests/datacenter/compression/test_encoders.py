"""Encoders of gradients, as pure functions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.datacenter.compression.encoders import Encoder, Int8, Signs, pack_bits, unpack_bits

ENCODERS: list[Encoder] = [Int8(block=16), Signs(block=16)]


def blocks(encoder: Encoder, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks of random sizes, padded with zeros; scales differ by orders of magnitude."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, encoder.block, generator=generator)
    values *= 10.0 ** torch.randint(-6, 6, (count, 1), generator=generator)
    sizes = torch.randint(1, encoder.block + 1, (count,), generator=generator)
    return values * (torch.arange(encoder.block) < sizes[:, None]), sizes.to(torch.float32)


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=16, max_size=16), min_size=1, max_size=5))
def test_bits_are_packed_eight_to_a_byte_and_come_back(rows: list[list[bool]]) -> None:
    bits = torch.tensor(rows)
    packed = pack_bits(bits)
    assert packed.shape == (len(rows), 2)
    assert packed.dtype == torch.uint8
    assert int(packed[0, 0]) == sum(1 << place for place in range(8) if rows[0][place])
    assert torch.equal(unpack_bits(packed), bits)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_message_is_as_long_as_it_says(encoder: Encoder) -> None:
    message = encoder.encode(*blocks(encoder, 3, 0))
    assert message.shape == (3, encoder.block_bytes)
    assert message.dtype == torch.uint8


def test_bytes_of_an_element() -> None:
    assert Int8().block_bytes / Int8().block == 1 + 4 / 256
    assert Signs().block_bytes / Signs().block == 1 / 8 + 4 / 1024


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_int8_is_off_by_at_most_half_a_step(seed: int) -> None:
    encoder = Int8(block=16)
    values, sizes = blocks(encoder, 4, seed)
    error = (encoder.decode(encoder.encode(values, sizes)) - values).abs()
    assert (error <= values.abs().amax(dim=1, keepdim=True) / 254 * 1.0001).all()


@settings(deadline=None)
@given(st.integers(0, 1000))
def test_signs_times_mean_are_a_contraction(seed: int) -> None:
    """|x - C(x)|² = (1 - |x|₁² / (d |x|₂²)) |x|₂² (Karimireddy et al. 2019, lemma 8)."""
    encoder = Signs(block=16)
    values, sizes = blocks(encoder, 4, seed)
    real = torch.arange(16) < sizes[:, None]
    sent = encoder.decode(encoder.encode(values, sizes)) * real
    squares = values.double().square().sum(1)
    wanted = squares - values.double().abs().sum(1).square() / sizes
    torch.testing.assert_close(
        (values - sent).double().square().sum(1), wanted, rtol=1e-4, atol=1e-5 * float(squares.max())
    )
    assert torch.equal((sent > 0)[real], (values >= 0)[real])


@pytest.mark.parametrize("encoder", ENCODERS)
def test_zeros_stay_zeros(encoder: Encoder) -> None:
    message = encoder.encode(torch.zeros(2, encoder.block), torch.full((2,), float(encoder.block)))
    assert not encoder.decode(message).any()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_messages_and_the_last_residual_add_up_to_all_gradients(encoder: Encoder) -> None:
    """Error feedback telescopes: everything sent plus the last residual is the sum of all gradients."""
    residual, sent, given_ = torch.zeros(2, 16), torch.zeros(2, 16), torch.zeros(2, 16)
    sizes = torch.full((2,), 16.0)
    for step in range(50):
        gradient = torch.randn(2, 16, generator=torch.Generator().manual_seed(step))
        message = encoder.decode(encoder.encode(residual + gradient, sizes))
        residual, sent, given_ = residual + gradient - message, sent + message, given_ + gradient
    torch.testing.assert_close(sent + residual, given_, rtol=0, atol=1e-4)
    assert residual.abs().max() < 10


def test_signs_that_fill_no_byte_are_refused() -> None:
    with pytest.raises(ValueError, match="12 signs"):
        Signs(block=12)
