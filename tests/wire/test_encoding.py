from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.wire.encoding import (
    Encoding,
    as_stored,
    bfloat16_to_float32,
    decode,
    encode,
    encoding_of,
    float32_to_bfloat16,
    payload_bytes,
)
from atoll.wire.errors import ChunkError
from atoll.wire.v1 import tensors_pb2
from tests.wire.strategies import plain_encodings as encodings

F32 = npt.NDArray[np.float32]
bits32 = hnp.arrays(np.uint32, st.integers(1, 64)).map(lambda bits: bits.view(np.float32))
TORCH = {
    Encoding.FLOAT32: torch.float32,
    Encoding.FLOAT64: torch.float64,
    Encoding.FLOAT16: torch.float16,
    Encoding.BFLOAT16: torch.bfloat16,
}


def same(one: npt.NDArray[np.generic], other: npt.NDArray[np.generic]) -> None:
    """Equal bit for bit, except that any NaN equals any NaN."""
    np.testing.assert_array_equal(one, other)
    numbers = ~np.isnan(one.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(one)[numbers], np.signbit(other)[numbers])


@given(bits32, encodings)
def test_rounding_is_torchs(values: F32, encoding: Encoding) -> None:
    """Nearest, ties to even, over every bit pattern there is: subnormals, infinities, NaN."""
    reference = torch.from_numpy(values.copy()).to(TORCH[encoding]).to(torch.float64).numpy()
    payload = encode(values, encoding)
    assert payload.nbytes == payload_bytes(encoding, values.size)
    same(decode(payload.data, encoding).astype(np.float64), reference)


def test_every_bfloat16_survives_a_round_trip() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = bfloat16_to_float32(bits)
    again = float32_to_bfloat16(wide)
    nan = np.isnan(wide)
    np.testing.assert_array_equal(again[~nan], bits[~nan])
    assert np.isnan(bfloat16_to_float32(again[nan])).all()


def test_every_float16_survives_a_round_trip() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    again = encode(decode(halves.data, Encoding.FLOAT16), Encoding.FLOAT16)
    np.testing.assert_array_equal(again, halves)


def test_halfway_cases_of_bfloat16_go_to_even() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7F8000], np.uint32).view(np.float32)
    assert [hex(bits) for bits in float32_to_bfloat16(halfway)] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80"]


@given(hnp.arrays(np.float64, st.integers(1, 32)))
def test_float64_is_exact(values: npt.NDArray[np.float64]) -> None:
    same(decode(encode(values, Encoding.FLOAT64).data, Encoding.FLOAT64), values)


def test_nothing_is_copied_where_nothing_changes() -> None:
    values = np.arange(4, dtype=np.float32)
    assert np.shares_memory(encode(values, Encoding.FLOAT32), values)
    assert np.shares_memory(decode(values.data, Encoding.FLOAT32), values)


def test_overflow_becomes_infinite_without_a_warning() -> None:
    with np.errstate(all="raise"):
        assert np.isinf(encode(np.array([1e6], np.float32), Encoding.FLOAT16)).all()


def test_numbers_are_those_of_the_proto() -> None:
    for encoding in Encoding:
        assert int(tensors_pb2.Encoding.Value(f"ENCODING_{encoding.name}")) == int(encoding)
        assert encoding_of(int(encoding)) is encoding


@pytest.mark.parametrize("number", [0, 5, 15, 18, -1])
def test_refuses_unknown_numbers(number: int) -> None:
    with pytest.raises(ChunkError, match=f"encoding {number} is unknown to this version.*1 \\(float32\\)"):
        encoding_of(number)


@given(encodings, st.integers(0, 64))
def test_refuses_broken_elements(encoding: Encoding, length: int) -> None:
    if length % encoding.storage.itemsize:
        with pytest.raises(ChunkError, match="not a whole number"):
            decode(bytes(length), encoding)
    else:
        assert as_stored(bytes(length), encoding).size == length // encoding.storage.itemsize
