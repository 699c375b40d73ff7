"""Positions of a rank's part of a tensor in the flat element space, and copying bytes between them. Pure; numpy only.

A *part* is a box of an n-dimensional tensor: the part that tensor, expert and data parallelism leave to one rank. In
the flat space it is a list of strided ranges; concatenated, they give the elements of the box in C order. Positions in
the box are counted in that order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from math import prod

import numpy as np
import numpy.typing as npt

from atoll.wire.chunks import ElementRange

Bytes = npt.NDArray[np.uint8]


def ranges_of_box(
    start: int, shape: Sequence[int], offsets: Sequence[int], local: Sequence[int]
) -> tuple[ElementRange, ...]:
    """Return the ranges of a box.

    Args:
        start: element at which the tensor begins.
        shape: shape of the tensor.
        offsets: index of the box's first element, by dim.
        local: shape of the box.

    Returns:
        One range for a box that is cut along one dim, or along the first and one other; none for an empty box.
    """
    if not prod(local):
        return ()
    sizes = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    first = start + sum(offset * size for offset, size in zip(offsets, sizes, strict=True))
    cut = [dim for dim in range(len(shape)) if local[dim] != shape[dim]]
    if not cut:
        return (ElementRange.run(first, prod(shape)),)
    inner = cut[-1]
    block = local[inner] * sizes[inner]
    outer = cut[-2] if len(cut) > 1 else 0
    if inner == 0:
        return (ElementRange.run(first, block),)
    stride, count = sizes[inner - 1], prod(local[outer:inner])
    leading = [range(0, local[dim] * sizes[dim], sizes[dim]) for dim in range(outer)]
    return tuple(_strided(first + sum(steps), block, stride, count) for steps in product(*leading))


def _strided(offset: int, block: int, stride: int, count: int) -> ElementRange:
    return ElementRange.run(offset, block) if count == 1 else ElementRange(offset, block, stride, count)


def slice_ranges(ranges: Sequence[ElementRange], start: int, stop: int) -> tuple[ElementRange, ...]:
    """Return positions [start, stop) of concatenated ranges, as ranges."""
    found: list[ElementRange] = []
    position = 0
    for span in ranges:
        lower, upper = max(start - position, 0), min(stop - position, span.size)
        if lower < upper:
            found.extend(_slice(span, lower, upper))
        position += span.size
    return tuple(found)


def _slice(span: ElementRange, lower: int, upper: int) -> Iterator[ElementRange]:
    """Yield up to three ranges: the rest of a row, whole rows, the beginning of a row."""
    if span.contiguous:
        yield ElementRange.run(span.offset + lower, upper - lower)
        return
    row, within = divmod(lower, span.block)
    if within:
        until = min(span.block, within + upper - lower)
        yield ElementRange.run(span.offset + row * span.stride + within, until - within)
        lower += until - within
        row += 1
    rows = (upper - lower) // span.block
    if rows:
        yield _strided(span.offset + row * span.stride, span.block, span.stride, rows)
        lower += rows * span.block
    if lower < upper:
        yield ElementRange.run(span.offset + (row + rows) * span.stride, upper - lower)


class Positions:
    """Positions of elements when ranges are stored one after another."""

    def __init__(self, ranges: Sequence[ElementRange]) -> None:
        starts = accumulate((span.size for span in ranges), initial=0)
        self._spans = sorted(zip(ranges, starts, strict=False), key=lambda item: item[0].offset)
        self._offsets = [span.offset for span, _ in self._spans]

    def of(self, chunk: ElementRange) -> int:
        """Return the position of a chunk's first element. A chunk is cut from one range, so its other elements follow.

        Raises:
            ValueError: if the chunk is in none of the ranges.
        """
        # Strided ranges may interleave: the last range that begins before the chunk need not contain it.
        for place in range(bisect_right(self._offsets, chunk.offset) - 1, -1, -1):
            span, start = self._spans[place]
            row, within = divmod(chunk.offset - span.offset, span.stride)
            if within < span.block and row < span.count:
                return start + row * span.block + within
        raise ValueError(f"{chunk} is in none of the ranges")


def within(chunk: Bytes, first: int, span: ElementRange) -> tuple[int, Bytes]:
    """Return the bytes of a chunk of the flat space that are in a range.

    Args:
        chunk: bytes [first, first + len(chunk)) of the space.
        first: where it begins.
        span: a range, in bytes.

    Returns:
        Their position in the range, and the bytes, which are contiguous there too: a view of the chunk if the range is
        contiguous, else a copy.
    """
    stop = first + chunk.size
    if span.contiguous:
        return _of_row(chunk, first, 0, ElementRange.run(span.offset, span.size))
    whole_from = min(max(-((span.offset - first) // span.stride), 0), span.count)
    whole_to = max(min((stop - span.offset - span.block) // span.stride + 1, span.count), whole_from)
    parts = [_of_row(chunk, first, whole_from - 1, span)]
    if rows := whole_to - whole_from:
        at = span.offset + whole_from * span.stride - first
        whole = np.lib.stride_tricks.as_strided(chunk[at:], (rows, span.block), (span.stride, 1), writeable=False)
        parts.append((whole_from * span.block, whole.reshape(-1)))
    parts.append(_of_row(chunk, first, whole_to, span))
    there = [part for part in parts if part[1].size]
    if len(there) < 2:
        return there[0] if there else (0, chunk[:0])
    return there[0][0], np.concatenate([values for _, values in there])


def _of_row(chunk: Bytes, first: int, row: int, span: ElementRange) -> tuple[int, Bytes]:
    """Return the part of one row of a range that is in a chunk; empty for a row that the range does not have."""
    begin = span.offset + row * span.stride
    lower, upper = max(first, begin), min(first + chunk.size, begin + span.block)
    if not 0 <= row < span.count or lower >= upper:
        return 0, chunk[:0]
    return row * span.block + lower - begin, chunk[lower - first : upper - first]


def chunks_of(span: ElementRange, chunk_bytes: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the chunks that contain bytes of a range (in bytes), in order, each once."""
    if span.contiguous or span.stride <= chunk_bytes:
        return np.arange(span.offset // chunk_bytes, (span.stop - 1) // chunk_bytes + 1)
    starts = span.offset + span.stride * np.arange(span.count)
    firsts, lasts = starts // chunk_bytes, (starts + span.block - 1) // chunk_bytes
    return np.unique(np.concatenate([np.arange(one, two + 1) for one, two in zip(firsts, lasts, strict=True)]))
