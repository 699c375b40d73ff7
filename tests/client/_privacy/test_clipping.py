from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atoll.client import UpdateError
from atoll.client._privacy.clipping import ANY_FINITE, BLOCK_ELEMENTS, MARGIN, Scaled, clip_factor, norm_of
from atoll.client._transfer.elements import DeltaSource
from atoll.client.testing import model_of
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import Encoding, decode, stored_items


def source(*arrays: npt.NDArray[Any], max_abs: float = ANY_FINITE) -> DeltaSource:
    named = {f"t{index}": array for index, array in enumerate(arrays)}
    model = model_of({name: np.zeros_like(array) for name, array in named.items()})
    return DeltaSource(model, weights=named, is_delta=True, max_abs=max_abs)


def test_the_norm_is_over_all_tensors_together() -> None:
    drawn = np.random.default_rng(0).normal(size=3 * BLOCK_ELEMENTS + 17)
    parts = drawn[:100].astype(np.float32), drawn[100:]
    expected = math.sqrt(float((parts[0].astype(np.float64) ** 2).sum() + (parts[1] ** 2).sum()))
    assert norm_of(source(*parts), [ElementRange.run(0, drawn.size)]) == pytest.approx(expected, rel=1e-12)


def test_the_norm_is_over_what_is_sent() -> None:
    values = np.arange(24, dtype=np.float32)
    ranges = [ElementRange(1, 2, 6, 4), ElementRange.run(5, 1)]
    assert norm_of(source(values), ranges) ** 2 == pytest.approx(sum(i * i for i in (1, 2, 7, 8, 13, 14, 19, 20, 5)))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_and_named(wrong: float) -> None:
    values = np.ones(10, np.float32)
    values[3] = wrong
    with pytest.raises(UpdateError, match=r"'t0' is (nan|-?inf) at \[3\]"):
        norm_of(source(values), [ElementRange.run(0, 10)])


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_no_factor_clips_what_is_not_finite(norm: float) -> None:
    """NaN would pass min(1, C / norm)."""
    with pytest.raises(UpdateError, match="must be finite"):
        clip_factor(norm, 1.0)


def test_short_updates_are_left_alone_and_long_ones_stay_a_little_too_long() -> None:
    assert clip_factor(0.0, 1.0) == clip_factor(1.0, 1.0) == clip_factor(1.01, 1.0) == 1.0
    assert clip_factor(10.0, 1.0) * 10.0 == pytest.approx(MARGIN)
    assert clip_factor(5e-324, 1e-300) == 1.0


def test_float32_squares_that_overflow_do_not() -> None:
    values = np.full(4, 3e38, np.float32)
    assert norm_of(source(values), [ElementRange.run(0, 4)]) == pytest.approx(6e38)


@pytest.mark.parametrize("encoding", [Encoding.FLOAT32, Encoding.FLOAT64, Encoding.FLOAT16, Encoding.INT8_BLOCK])
def test_scaled_elements_are_scaled_in_every_encoding(encoding: Encoding) -> None:
    values = np.linspace(-1, 1, 130)
    out = np.empty(stored_items(encoding, 130), encoding.storage)
    Scaled(source(values), 0.25, 32.0).read(ElementRange.run(0, 130), encoding, out)
    np.testing.assert_allclose(decode(out.view(np.uint8).data, encoding, 130), values / 4, atol=2e-3)


def test_the_largest_value_counts_after_clipping() -> None:
    values = np.array([100.0, 0.0])
    out = np.empty(2)
    Scaled(source(values), 0.1, 10.0).read(ElementRange.run(0, 2), Encoding.FLOAT64, out)
    assert out[0] == 10.0
    with pytest.raises(UpdateError, match=r"magnitude 10; the server accepts up to 9\.9"):
        Scaled(source(values), 0.1, 9.9).read(ElementRange.run(0, 2), Encoding.FLOAT64, out)
