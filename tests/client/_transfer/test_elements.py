from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.client import UpdateError
from atoll.client._transfer.elements import DeltaSource, Shard, cut_ranges
from atoll.client.model import Model
from atoll.client.testing import model_of
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding, encode, stored_items
from atoll.wire.encoding import bfloat16_to_float32 as widen
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.wire.strategies import plain_encodings

LAYOUT = Layout(
    (
        TensorSpec("a", (7, 5), Dtype.FLOAT32),
        TensorSpec("b", (11,), Dtype.FLOAT64),
        TensorSpec("c", (3, 2, 2), Dtype.BFLOAT16),
        TensorSpec("d", (), Dtype.FLOAT16),
        TensorSpec("e", (9,), Dtype.FLOAT32),
    )
)


def random_arrays(seed: int) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for spec in LAYOUT.tensors:
        values = rng.normal(size=spec.shape).astype(np.float64)
        if spec.dtype is Dtype.BFLOAT16:
            arrays[spec.name] = np.asarray(encode(values.astype(np.float32), Encoding.BFLOAT16)).reshape(spec.shape)
        else:
            arrays[spec.name] = np.asarray(values, dtype=spec.dtype.storage)
    return arrays


def reference(local: dict[str, npt.NDArray[Any]], model: Model, encoding: Encoding) -> npt.NDArray[Any]:
    """The whole difference, tensor by tensor: float32, float64 for float64 tensors, then encoded."""
    parts = []
    for spec in LAYOUT.tensors:
        pair = [values[spec.name] for values in (local, model)]
        wide: list[npt.NDArray[Any]]
        if spec.dtype is Dtype.FLOAT64:
            wide = [array.astype(np.float64) for array in pair]
        elif spec.dtype is Dtype.BFLOAT16:
            wide = [widen(a) if a.dtype == np.uint16 else a.astype(np.float32) for a in pair]
        else:
            wide = [array.astype(np.float32) for array in pair]
        parts.append(encode((wide[0] - wide[1]).reshape(-1), encoding))
    return np.concatenate(parts)


def source_of(local: dict[str, npt.NDArray[Any]], model: Model, max_abs: float = 1e6) -> DeltaSource:
    return DeltaSource(model, weights=local, is_delta=False, max_abs=max_abs)


@given(plain_encodings, st.integers(1, 80), st.integers(0, 100))
def test_any_cut_gives_the_bytes_of_the_whole(encoding: Encoding, chunk: int, seed: int) -> None:
    model, local = model_of(random_arrays(1)), random_arrays(seed)
    source = source_of(local, model)
    pieces = []
    for span in cut_ranges(Shard.whole(LAYOUT, source).ranges, chunk):
        out = np.empty(span.size, encoding.storage)
        source.read(span, encoding, out)
        pieces.append(out)
    np.testing.assert_array_equal(np.concatenate(pieces), reference(local, model, encoding))


@given(st.integers(0, 20), st.integers(1, 6), st.integers(0, 5), st.integers(1, 6), plain_encodings)
def test_strided_ranges(offset: int, block: int, gap: int, count: int, encoding: Encoding) -> None:
    """Read like a tensor-parallel rank: in blocks, even across the borders of tensors."""
    span = ElementRange(offset, block, block + gap, count)
    if span.stop > LAYOUT.size:
        return
    model, local = model_of(random_arrays(1)), random_arrays(2)
    out = np.empty(span.size, encoding.storage)
    source_of(local, model).read(span, encoding, out)
    named = [offset + i * span.stride + j for i in range(count) for j in range(block)]
    np.testing.assert_array_equal(out, reference(local, model, encoding)[named])


@given(st.sampled_from([Encoding.INT8_BLOCK, Encoding.INT4_BLOCK]), st.integers(1, 80), st.integers(0, 100))
def test_quantised_chunks_are_those_of_the_float32_difference(encoding: Encoding, chunk: int, seed: int) -> None:
    """Across tensors' borders; each chunk's blocks begin with its first element."""
    model, local = model_of(random_arrays(1)), random_arrays(seed)
    source, values = source_of(local, model), reference(local, model, Encoding.FLOAT32).astype(np.float32)
    for span in cut_ranges(Shard.whole(LAYOUT, source).ranges, chunk):
        out = np.full(stored_items(encoding, span.size), 0xAA, encoding.storage)
        source.read(span, encoding, out)
        np.testing.assert_array_equal(out, encode(values[span.offset : span.stop], encoding))


def test_a_delta_is_sent_as_it_is() -> None:
    model = model_of(random_arrays(1))
    delta = {name: np.full(view.shape, 0.25, np.float32) for name, view in model.items()}
    out = np.empty(LAYOUT.size, np.float32)
    DeltaSource(model, weights=delta, is_delta=True, max_abs=1.0).read(
        ElementRange.run(0, LAYOUT.size), Encoding.FLOAT32, out
    )
    assert (out == 0.25).all()


def test_arrays_of_any_order_and_float_type() -> None:
    model = model_of({"w": np.zeros((4, 6), np.float32)})
    values = np.arange(24, dtype=np.float64).reshape(6, 4).T
    assert not values.flags.c_contiguous
    out = np.empty(24, np.float32)
    DeltaSource(model, weights={"w": values}, is_delta=False, max_abs=100).read(
        ElementRange.run(0, 24), Encoding.FLOAT32, out
    )
    np.testing.assert_array_equal(out.reshape(4, 6), values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 32.5, -33.0])
@pytest.mark.parametrize("is_delta", [True, False])
def test_values_that_the_server_would_reject_are_named(bad: float, is_delta: bool) -> None:
    model = model_of({"w": np.zeros((2, 3), np.float32)})
    values = np.zeros((2, 3), np.float32)
    values[1, 1] = bad
    source = DeltaSource(model, weights={"w": values}, is_delta=is_delta, max_abs=32.0)
    with pytest.raises(UpdateError, match=rf"'w' is {bad} at \[1, 1\]; the server accepts finite values .* up to 32"):
        source.read(ElementRange.run(0, 6), Encoding.FLOAT32, np.empty(6, np.float32))


def test_the_bound_itself_is_allowed() -> None:
    model = model_of({"w": np.zeros(2, np.float32)})
    source = DeltaSource(model, weights={"w": np.array([32.0, -32.0])}, is_delta=True, max_abs=32.0)
    source.read(ElementRange.run(0, 2), Encoding.FLOAT32, np.empty(2, np.float32))


def test_a_shard_counts_its_elements() -> None:
    source = source_of(random_arrays(1), model_of(random_arrays(1)))
    assert Shard((ElementRange.run(0, 5), ElementRange(10, 2, 4, 3)), source).size == 11
