"""Boxes of tensors as ranges of a flat space, against numpy's own indexing."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.client._transfer.elements import cut_ranges
from atoll.datacenter.federation.ranges import Positions, chunks_of, ranges_of_box, slice_ranges, within
from atoll.wire.chunks import ElementRange


def elements(ranges: tuple[ElementRange, ...] | list[ElementRange]) -> npt.NDArray[np.int64]:
    """Return the elements that ranges name, in order."""
    rows = [
        span.offset + span.stride * np.arange(span.count)[:, None] + np.arange(span.block)[None, :] for span in ranges
    ]
    return np.concatenate([row.reshape(-1) for row in rows]) if rows else np.empty(0, np.int64)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    shape = draw(st.lists(st.integers(1, 6), min_size=0, max_size=4))
    offsets = [draw(st.integers(0, size)) for size in shape]
    local = [draw(st.integers(0, size - offset)) for size, offset in zip(shape, offsets, strict=True)]
    return shape, offsets, local


@given(boxes(), st.integers(0, 100))
def test_a_box_is_what_numpy_cuts_out(box: tuple[list[int], list[int], list[int]], start: int) -> None:
    shape, offsets, local = box
    whole = start + np.arange(prod(shape)).reshape(shape)
    cut = whole[tuple(slice(offset, offset + size) for offset, size in zip(offsets, local, strict=True))]
    assert elements(ranges_of_box(start, shape, offsets, local)).tolist() == cut.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("shape", "offsets", "local", "count"),
    [
        ((8, 6), (2, 0), (4, 6), 1),
        ((8, 6), (0, 2), (8, 2), 1),
        ((8, 6), (2, 2), (4, 2), 1),
        ((4, 8, 6), (1, 0, 2), (2, 8, 2), 1),
        ((4, 8, 6), (0, 2, 2), (4, 3, 2), 4),
    ],
)
def test_as_few_ranges_as_there_can_be(
    shape: tuple[int, ...], offsets: tuple[int, ...], local: tuple[int, ...], count: int
) -> None:
    assert len(ranges_of_box(0, shape, offsets, local)) == count


@given(boxes(), st.data())
def test_a_slice_is_a_slice(box: tuple[list[int], list[int], list[int]], data: st.DataObject) -> None:
    ranges = ranges_of_box(5, *box)
    everything = elements(ranges)
    start = data.draw(st.integers(0, len(everything)))
    stop = data.draw(st.integers(start, len(everything)))
    assert elements(slice_ranges(ranges, start, stop)).tolist() == everything[start:stop].tolist()


@given(boxes(), st.integers(1, 9))
def test_chunks_lie_where_positions_say(box: tuple[list[int], list[int], list[int]], chunk_elements: int) -> None:
    ranges = ranges_of_box(3, *box)
    everything, positions = elements(ranges), Positions(ranges)
    for chunk in cut_ranges(ranges, chunk_elements):
        position = positions.of(chunk)
        assert everything[position : position + chunk.size].tolist() == elements([chunk]).tolist()


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the ranges"):
        Positions([ElementRange(4, 2, 6, 3)]).of(ElementRange.run(7, 1))


@given(boxes(), st.integers(1, 50), st.integers(0, 20))
def test_bytes_arrive_chunk_by_chunk(box: tuple[list[int], list[int], list[int]], chunk_bytes: int, start: int) -> None:
    shape, _, _ = box
    space = np.random.default_rng(0).integers(0, 256, start + prod(shape) + 7, np.uint8)
    for span in ranges_of_box(start, *box):
        out, taken = np.zeros(span.size, np.uint8), 0
        for number in chunks_of(span, chunk_bytes):
            first = int(number) * chunk_bytes
            position, found = within(space[first : first + chunk_bytes], first, span)
            out[position : position + found.size] = found
            taken += found.size
        assert taken == span.size
        assert out.tolist() == space[elements([span])].tolist()
