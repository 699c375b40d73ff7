"""Updates are clipped while they are folded, in any encoding, and taken back exactly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from atoll.server.aggregation import Accumulator, AggregationError, GridError
from atoll.server.aggregation.grid import Grid
from atoll.server.aggregation.partial import MergedSum
from atoll.wire.chunks import ChunkHeader, ElementRange, header_of
from atoll.wire.encoding import Encoding, decode, encode

CLIP = 0.5
GRID = Grid(fraction_bits=30, max_abs=32.0, weight_shift=0, weight_total_bits=8, clip=CLIP)
VALUES = np.random.default_rng(1).standard_normal(1024)
ENCODINGS = [Encoding.FLOAT32, Encoding.FLOAT64, Encoding.BFLOAT16, Encoding.INT8_BLOCK, Encoding.INT4_BLOCK]
Chunks = list[tuple[ChunkHeader, bytes]]


def chunks_of(values: np.ndarray, encoding: Encoding) -> tuple[Chunks, np.ndarray]:
    """The update in two chunks, and the values that it decodes to."""
    chunks, decoded, half = [], [], values.size // 2
    for at in (0, half):
        payload = encode(values[at : at + half], encoding).tobytes()
        chunks.append((header_of(ElementRange.run(at, half), encoding, payload), payload))
        decoded.append(decode(payload, encoding, half).astype(np.float64))
    return chunks, np.concatenate(decoded)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_long_update_enters_with_the_norm_of_the_clip(encoding: Encoding) -> None:
    chunks, decoded = chunks_of(VALUES, encoding)
    made = Accumulator(VALUES.size, GRID)
    norm = float(np.linalg.norm(decoded))
    made.fold("a", 3, chunks, norm)
    entered = made.sum_block(0, VALUES.size) / 3
    assert np.array_equal(entered, np.rint(decoded * (GRID.scale * GRID.factor(norm))))
    assert np.linalg.norm(entered) <= CLIP * GRID.scale + np.sqrt(VALUES.size)
    assert np.linalg.norm(entered) == pytest.approx(CLIP * GRID.scale, rel=1e-6)


@pytest.mark.parametrize("norm", [0.0, CLIP / 2, CLIP * (1 - 2**-30)])
def test_an_update_within_the_clip_stays_as_it_is_and_no_norm_divides_by_zero(norm: float) -> None:
    values = VALUES * (norm / np.linalg.norm(VALUES))
    chunks, decoded = chunks_of(values, Encoding.FLOAT64)
    made = Accumulator(VALUES.size, GRID)
    made.fold("a", 1, chunks, norm)
    assert np.array_equal(made.sum_block(0, VALUES.size), np.rint(decoded * GRID.scale))


@pytest.mark.parametrize("norm", [CLIP, CLIP * (1 + 2**-50), 2.0, 1e30, 1e308])
def test_what_is_beyond_is_scaled_to_the_clip_and_not_a_bit_above(norm: float) -> None:
    assert norm * GRID.factor(norm) < CLIP
    assert norm * GRID.factor(norm) == pytest.approx(CLIP, rel=1e-10)


def test_norms_measured_too_small_are_counted() -> None:
    """The real norm may be 2**-37 above the measured one."""
    for measured in (CLIP * (1 - 2**-36), CLIP, 7.0):
        assert measured * (1 + 2**-37) * GRID.factor(measured) <= CLIP


@pytest.mark.parametrize("norm", [float("nan"), float("inf"), -1.0])
def test_a_norm_that_is_no_number_is_refused_before_anything_is_added(norm: float) -> None:
    made = Accumulator(VALUES.size, GRID)
    with pytest.raises(GridError, match="norm"):
        made.fold("a", 1, chunks_of(VALUES, Encoding.FLOAT32)[0], norm)
    assert not made.updates
    assert not made.sum_block(0, VALUES.size).any()


def test_a_clipped_update_that_breaks_off_is_taken_back_exactly() -> None:
    made = Accumulator(VALUES.size, GRID)
    norm = float(np.linalg.norm(VALUES))
    chunks = chunks_of(VALUES, Encoding.FLOAT64)[0]
    made.fold("a", 1, chunks, norm)
    before = made.sum_block(0, VALUES.size).copy()

    def torn() -> Iterator[tuple[ChunkHeader, bytes]]:
        yield chunks[0]
        raise AggregationError("torn")

    with pytest.raises(AggregationError, match="torn"):
        made.fold("b", 2, torn(), norm)
    assert np.array_equal(made.sum_block(0, VALUES.size), before)


def test_sums_of_other_clips_are_not_merged() -> None:
    other = Accumulator(VALUES.size, Grid(30, 32.0, 0, 8, clip=1.0))
    with pytest.raises(AggregationError, match="different rounds"):
        MergedSum([Accumulator(VALUES.size, GRID), other])
