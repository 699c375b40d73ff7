"""Torch's encoding equals that of ``atoll.wire`` byte for byte, and the receiver decodes the stated values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from atoll.datacenter.federation.quantise import quantise
from atoll.wire.encoding import Encoding, decode, encode
from tests.datacenter.federation.parts import Floats

ENCODINGS = list(Encoding)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def assert_same(values: Floats, encoding: Encoding) -> None:
    found = quantise(torch.from_numpy(values.copy()), encoding)
    wanted = encode(values, encoding)
    assert found.payload.numpy().tobytes() == wanted.tobytes()
    with np.errstate(over="ignore"):
        received = decode(wanted.data, encoding, values.size).astype(np.float32)
    np.testing.assert_array_equal(found.received.numpy(), received)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [1, 7, 127, 128, 129, 1000, 256 * 128, 256 * 128 + 1, 200_003])
@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e-3, 1.0, 1e4])
def test_every_size_and_magnitude(encoding: Encoding, size: int, scale: float) -> None:
    values = (np.random.default_rng(size).standard_normal(size) * scale).astype(np.float32)
    values[-1] = -0.0
    values[128:256] = 0
    assert_same(values, encoding)


@pytest.mark.parametrize("encoding", [Encoding.INT8_BLOCK, Encoding.INT4_BLOCK, Encoding.BFLOAT16])
@given(values=arrays.arrays(np.float32, st.integers(1, 300), elements=FINITE))
def test_all_finite_values(encoding: Encoding, values: Floats) -> None:
    assert_same(values, encoding)
