"""Quantised blocks; docs/protocol.md, "Quantised blocks", has the byte-exact rules that are checked here."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.wire.blocks import BLOCK, BlockForm
from atoll.wire.encoding import (
    Encoding,
    as_received,
    decode,
    encode,
    most_elements,
    payload_bytes,
    stored_items,
)
from atoll.wire.errors import ChunkError

F32 = npt.NDArray[np.float32]
QUANTISED = (Encoding.INT8_BLOCK, Encoding.INT4_BLOCK)
quantised = st.sampled_from(QUANTISED)
sizes = st.one_of(st.integers(0, 400), st.sampled_from([127, 128, 129, 255, 256, 257, 256 * 128 + 1]))
values32 = hnp.arrays(
    np.float32,
    st.integers(1, 300),
    elements=st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from([0.0, -0.0, 32.0])),
)


def form_of(encoding: Encoding) -> BlockForm:
    form = encoding.form
    assert form is not None
    return form


def gaussian(size: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def scales_of(payload: bytes, count: int) -> F32:
    return np.frombuffer(payload[: 4 * -(-count // BLOCK)], np.float32)


def by_the_book(payload: bytes, encoding: Encoding, count: int) -> list[float]:
    """docs/protocol.md word for word, an element at a time, in rational arithmetic."""
    border = 4 * -(-count // 128)
    out = []
    for at in range(count):
        (scale,) = struct.unpack_from("<f", payload, 4 * (at // 128))
        if encoding is Encoding.INT8_BLOCK:
            (integer,) = struct.unpack_from("<b", payload, border + at)
        else:
            nibble = payload[border + at // 2] >> 4 * (at % 2) & 15
            integer = nibble - 16 if nibble > 7 else nibble
        out.append(float(np.float32(float(Fraction(scale) * integer))))
    return out


# The payloads of docs/protocol.md: (encoding, values, payload in hex, what is decoded).
VECTORS = [
    (Encoding.INT8_BLOCK, [127.0, -63.5, 0.5, 1.5, 0.0], "0000803f7fc0000200", [127.0, -64.0, 0.0, 2.0, 0.0]),
    (Encoding.INT4_BLOCK, [7.0, -3.5, 0.5, 1.5, -1.0], "0000803fc7200f", [7.0, -4.0, 0.0, 2.0, -1.0]),
    (Encoding.INT8_BLOCK, [1.0], "0002013c7f", [0.9999995231628418]),
    (Encoding.INT4_BLOCK, [1.0, -1.0], "2049123e97", [0.9999995231628418, -0.9999995231628418]),
    (
        Encoding.INT4_BLOCK,
        [1.0] * 128 + [2.0],
        "2049123e" + "2049923e" + "77" * 64 + "07",
        [0.9999995231628418] * 128 + [1.9999990463256836],
    ),
    (Encoding.INT4_BLOCK, [0.0, 0.0, 0.0], "000000000000", [0.0, 0.0, 0.0]),
]


@pytest.mark.parametrize(("encoding", "values", "payload", "decoded"), VECTORS)
def test_vectors_of_the_protocol(encoding: Encoding, values: list[float], payload: str, decoded: list[float]) -> None:
    assert encode(np.array(values, np.float32), encoding).tobytes().hex() == payload
    assert decode(bytes.fromhex(payload), encoding, len(values)).tolist() == decoded


@given(sizes)
def test_the_size_rule(count: int) -> None:
    scales = 4 * math.ceil(count / 128)
    assert payload_bytes(Encoding.INT8_BLOCK, count) == scales + count
    assert payload_bytes(Encoding.INT4_BLOCK, count) == scales + math.ceil(count / 2)
    for encoding in QUANTISED:
        payload = encode(gaussian(count), encoding)
        assert payload.nbytes == stored_items(encoding, count) == payload_bytes(encoding, count)
        assert decode(payload.data, encoding, count).size == count


@given(quantised, st.integers(1, 1 << 22))
def test_a_chunk_takes_as_many_whole_blocks_as_fit(encoding: Encoding, chunk_bytes: int) -> None:
    most = most_elements(encoding, chunk_bytes)
    assert most % BLOCK == 0
    assert payload_bytes(encoding, most) <= chunk_bytes or most == BLOCK
    assert payload_bytes(encoding, most + BLOCK) > chunk_bytes


@given(st.data(), quantised, st.integers(1, 300))
def test_any_valid_payload_is_decoded_by_the_book(data: st.DataObject, encoding: Encoding, count: int) -> None:
    form = form_of(encoding)
    scales = data.draw(hnp.arrays(np.float32, -(-count // BLOCK), elements=st.floats(0, 2.0**120, width=32)))
    integers = data.draw(hnp.arrays(np.int8, count, elements=st.integers(-form.largest, form.largest)))
    if form.bits == 4:
        low, high = integers[0::2] & 15, np.zeros(-(-count // 2), np.int8)
        high[: count // 2] = integers[1::2] & 15
        packed = (low | (high << 4)).astype(np.uint8).tobytes()
    else:
        packed = integers.tobytes()
    payload = np.abs(scales).tobytes() + packed  # no negative zeros
    np.testing.assert_array_equal(decode(payload, encoding, count), by_the_book(payload, encoding, count))


@given(values32, quantised)
def test_each_element_is_off_by_half_a_step_at_most(values: F32, encoding: Encoding) -> None:
    """Exactly, in rational arithmetic: every integer is the nearest, and every product exact."""
    payload = encode(values, encoding).tobytes()
    decoded = decode(payload, encoding, values.size)
    for at, (value, found) in enumerate(zip(values.tolist(), decoded.tolist(), strict=True)):
        block = values[at // BLOCK * BLOCK :][:BLOCK]
        scale = float(scales_of(payload, values.size)[at // BLOCK])
        if scale:
            assert abs(Fraction(value) - Fraction(found)) <= Fraction(scale) / 2
        else:
            assert float(np.abs(block).max()) <= 128 * 2.0**-126
        assert scale <= float(np.abs(block).max()) / form_of(encoding).largest * (1 + 2**-23)


@given(values32, quantised)
def test_what_was_decoded_is_encoded_to_the_same_bytes(values: F32, encoding: Encoding) -> None:
    payload = encode(values, encoding).tobytes()
    assert encode(decode(payload, encoding, values.size), encoding).tobytes() == payload


@pytest.mark.parametrize("encoding", QUANTISED)
@pytest.mark.parametrize("exponent", [-24, -1, 0, 5, 20])
def test_values_within_a_power_of_two_stay_within_it(encoding: Encoding, exponent: int) -> None:
    """``max_abs`` itself is representable and rounding keeps the order, so it refuses no update within ``max_abs``."""
    bound = np.float32(2.0**exponent)
    closest = [bound, np.nextafter(bound, np.float32(0)), *(bound * np.float32(1 - 2.0**-k) for k in range(1, 24))]
    for largest in closest:
        assert np.abs(as_received(np.array([largest, -largest / 3], np.float32), encoding)).max() <= bound


@given(hnp.arrays(np.float32, 3, elements=st.floats(-32, 32, width=32)), quantised)
def test_no_value_leaves_the_usual_range(values: F32, encoding: Encoding) -> None:
    assert np.abs(as_received(values, encoding)).max() <= 32


@given(quantised, st.integers(1, 3000), st.integers(1, 9), st.integers(0, 99))
def test_chunks_of_whole_blocks_are_received_as_the_whole(encoding: Encoding, size: int, step: int, seed: int) -> None:
    values = gaussian(size, seed)
    cuts = [values[start : start + step * BLOCK] for start in range(0, size, step * BLOCK)]
    pieces = [decode(encode(cut, encoding).data, encoding, cut.size) for cut in cuts]
    np.testing.assert_array_equal(np.concatenate(pieces), as_received(values, encoding))


def test_ties_go_to_even() -> None:
    halves = np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    assert as_received(halves, Encoding.INT8_BLOCK).tolist() == [127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -2.0]


def test_a_quotient_next_to_a_tie_is_no_tie() -> None:
    """In float32 this quotient would be 64.5 and go down to 64."""
    scale = np.float32(1.0 + 2.0**-16)
    value = np.nextafter(np.float32(64.5 * float(scale)), np.float32(np.inf))
    assert float(value) / float(scale) > 64.5
    found = encode(np.array([127 * float(scale), value], np.float32), Encoding.INT8_BLOCK)
    assert found.view(np.int8)[4:].tolist() == [127, 65]


def test_blocks_of_the_smallest_numbers_are_zeros() -> None:
    tiny = np.full(200, 2.0**-130, np.float32)
    tiny[150] = 1.0
    for encoding in QUANTISED:
        found = as_received(tiny, encoding)
        assert not found[:128].any()
        assert found[150] == pytest.approx(1.0, rel=1e-5)
        assert np.count_nonzero(found) == 1


def test_float64_values_are_rounded_to_float32_first() -> None:
    values = np.random.default_rng(1).standard_normal(300)
    for encoding in QUANTISED:
        np.testing.assert_array_equal(encode(values, encoding), encode(values.astype(np.float32), encoding))


@pytest.mark.parametrize("encoding", QUANTISED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
@pytest.mark.parametrize("at", [0, 127, 128, 299])
def test_what_is_not_finite_is_refused_by_the_receiver(encoding: Encoding, bad: float, at: int) -> None:
    values = gaussian(300).astype(np.float64)
    values[at] = bad
    with pytest.raises(ChunkError, match=rf"scale of \w+ block {at // 128} is (nan|inf): a scale is finite"):
        as_received(values, encoding)


@pytest.mark.parametrize("encoding", QUANTISED)
@pytest.mark.parametrize("bits", [0x80000000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF])
def test_impossible_scales_are_refused(encoding: Encoding, bits: int) -> None:
    payload = bytearray(encode(gaussian(300), encoding).tobytes())
    payload[4:8] = struct.pack("<I", bits)
    with pytest.raises(ChunkError, match=r"the scale of .* block 1 is .*: a scale is finite and not negative"):
        decode(payload, encoding, 300)


@pytest.mark.parametrize("at", [0, 127, 128, 300])
def test_the_integer_without_a_counterpart_is_refused(at: int) -> None:
    payload = bytearray(encode(gaussian(301), Encoding.INT8_BLOCK).tobytes())
    payload[12 + at] = 0x80
    with pytest.raises(ChunkError, match="an int8_block element is -128: allowed are -127 to 127"):
        decode(payload, Encoding.INT8_BLOCK, 301)
    payload = bytearray(encode(gaussian(301), Encoding.INT4_BLOCK).tobytes())
    kept = 0xF0 if at % 2 == 0 else 0x0F
    payload[12 + at // 2] = payload[12 + at // 2] & kept | (0x80 if at % 2 else 0x08)
    with pytest.raises(ChunkError, match="an int4_block element is -8: allowed are -7 to 7"):
        decode(payload, Encoding.INT4_BLOCK, 301)


@pytest.mark.parametrize("padding", range(1, 16))
def test_bits_where_no_element_is_must_be_0(padding: int) -> None:
    payload = bytearray(encode(np.ones(5, np.float32), Encoding.INT4_BLOCK).tobytes())
    assert decode(payload, Encoding.INT4_BLOCK, 5).size == 5
    payload[-1] |= padding << 4
    with pytest.raises(ChunkError, match=f"the last byte of 5 int4_block elements is 0x{padding:x}7"):
        decode(payload, Encoding.INT4_BLOCK, 5)


@given(quantised, st.binary(max_size=700), st.integers(0, 700))
def test_any_bytes_are_decoded_or_refused_by_name(encoding: Encoding, payload: bytes, count: int) -> None:
    try:
        found = decode(payload, encoding, count)
    except ChunkError:
        return
    assert len(payload) == payload_bytes(encoding, count)
    np.testing.assert_array_equal(found, by_the_book(payload, encoding, count))


def test_lengths_are_exact_and_the_count_is_needed() -> None:
    for encoding in QUANTISED:
        payload = encode(gaussian(130), encoding).tobytes()
        for wrong in (payload[:-1], payload + b"\0", b""):
            with pytest.raises(ChunkError, match=f"payload of {len(wrong)} bytes for 130 .* expected {len(payload)}"):
                decode(wrong, encoding, 130)
        with pytest.raises(ChunkError, match=r"number of elements .* must be given"):
            decode(payload, encoding)
    with pytest.raises(ChunkError, match="payload of 2 float32 elements, expected 3"):
        decode(bytes(8), Encoding.FLOAT32, 3)
