from __future__ import annotations

import mmap

import numpy as np
import pytest

from atoll.client.model import Model
from atoll.client.testing import model_of
from atoll.wire.encoding import float32_to_bfloat16
from atoll.wire.errors import LayoutError
from atoll.wire.layout import Dtype, Layout, TensorSpec

LAYOUT = Layout((TensorSpec("w", (2, 3), Dtype.FLOAT32), TensorSpec("b", (3,), Dtype.BFLOAT16)))


def test_tensors_are_views_into_the_buffer() -> None:
    mapped = mmap.mmap(-1, LAYOUT.size_bytes)
    model = Model(LAYOUT, mapped)
    mapped[0:4] = np.float32(2.5).tobytes()
    assert list(model) == ["w", "b"]
    assert len(model) == 2
    assert model["w"][0, 0] == 2.5
    assert model["b"].dtype == np.uint16
    assert np.shares_memory(model["w"], np.frombuffer(mapped, np.uint8))


def test_views_cannot_be_written_even_if_the_buffer_can() -> None:
    model = Model(LAYOUT, bytearray(LAYOUT.size_bytes))
    with pytest.raises(ValueError, match="read-only"):
        model["w"][:] = 0


def test_float32_widens_and_copies_only_where_it_must() -> None:
    values = np.array([1.0, -2.0, 0.5], np.float32)
    model = model_of({"w": values, "b": float32_to_bfloat16(values), "h": values.astype(np.float16)})
    assert model.float32("w") is not None
    assert np.shares_memory(model.float32("w"), model["w"])
    for name in ("b", "h"):
        np.testing.assert_array_equal(model.float32(name), values)
    assert model.spec("b").dtype is Dtype.BFLOAT16


def test_copies_are_writable() -> None:
    model = Model(LAYOUT, bytes(LAYOUT.size_bytes))
    copies = model.copy()
    copies["w"][:] = 1
    assert model["w"].sum() == 0


def test_a_buffer_of_another_size_is_refused() -> None:
    with pytest.raises(LayoutError, match="29 bytes for a layout of 30"):
        Model(LAYOUT, bytes(29))
