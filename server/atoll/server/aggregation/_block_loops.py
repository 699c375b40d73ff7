"""The loops over block-quantised payloads: like those of ``_loops``, but with a scale for each block.

An element is ``float32(scale * integer)``, as the wire format defines it, and is then treated as float32: sums,
magnitudes and sums of squares are bit for bit those of the decoded payload, which is never stored. Where integers are
packed two to a byte, one block at a time is unpacked to one byte each (128 bytes, in the processor's first-level
cache).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation._jit import callable_from_loops
from atoll.server.aggregation._loops import LANES, IntoSum, Vector, on_grid, pairwise

_BLOCK = LANES
"""Elements of a block (``atoll.wire.blocks.BLOCK``): inspection processes one block per step, an element in each
lane."""

FoldBlocks = Callable[[npt.NDArray[np.int64], Vector, Vector, tuple[int, int, int, int], int, float, float], int]
InspectBlocks = Callable[[Vector, Vector, int], tuple[int, float, int]]
Unpack = Callable[[Vector, int, int, Vector], Vector]


@callable_from_loops
def bytes_of(packed: Vector, first: int, length: int, scratch: Vector) -> Vector:  # noqa: ARG001 - one signature for both
    """Integers of 8 bits, which need no unpacking."""
    return packed[first : first + length]


@callable_from_loops
def nibbles_of(packed: Vector, first: int, length: int, scratch: Vector) -> Vector:
    """Unpack integers of 4 bits, from the even element ``first`` on, into ``scratch``; the lower bits come first."""
    start = first // 2
    pairs = packed[start : start + (length + 1) // 2]
    for at in range(pairs.size):
        pair = pairs[at]
        scratch[2 * at] = np.int8(np.int8(pair << 4) >> 4)
        scratch[2 * at + 1] = np.int8(pair >> 4)
    return scratch[:length]


def fold_blocks_with(unpack: Unpack, into_sum: IntoSum) -> FoldBlocks:
    """The loop that adds or puts ``rint(x * scale) * weight`` of each element x; as ``_loops.fold_with``."""

    def fold(
        sums: npt.NDArray[np.int64],
        steps: Vector,
        packed: Vector,
        target: tuple[int, int, int, int],
        weight: int,
        scale: float,
        limit: float,
    ) -> int:
        offset, block, stride, count = target
        size = block * count
        scratch = np.empty(_BLOCK, np.int8)
        refused = 0
        for first in range(0, size, _BLOCK):
            length = min(_BLOCK, size - first)
            integers = unpack(packed, first, length, scratch)
            step = steps[first // _BLOCK]
            done = 0
            while done < length:  # a block of the payload may lie in several blocks of the target
                row = (first + done) // block
                column = first + done - row * block
                run = min(block - column, length - done)
                start = offset + row * stride + column
                into = sums[start : start + run]
                part = integers[done : done + run]
                for at in range(run):
                    value = np.float64(np.float32(step * np.float32(part[at])))
                    into_sum(into, at, on_grid(value, scale, limit) * weight)
                    refused += not abs(value) <= limit
                done += run
        return refused

    return fold


def inspect_blocks_with(unpack: Unpack) -> InspectBlocks:
    """The loop that returns the bits of the largest magnitude, the sum of squares and the lowest integer."""

    def inspect(steps: Vector, packed: Vector, size: int) -> tuple[int, float, int]:
        squares = np.zeros(LANES, np.float64)
        largest = np.zeros(LANES, np.int32)
        lowest = np.zeros(LANES, np.int8)
        scratch = np.empty(_BLOCK, np.int8)
        for first in range(0, size, _BLOCK):
            integers = unpack(packed, first, min(_BLOCK, size - first), scratch)
            step = steps[first // _BLOCK]
            for lane in range(integers.size):
                value = np.float32(step * np.float32(integers[lane]))
                squares[lane] += np.float64(value) * np.float64(value)
                largest[lane] = max(largest[lane], value.view(np.int32) & np.int32(0x7FFFFFFF))
                lowest[lane] = min(lowest[lane], integers[lane])
        pairwise(squares, largest)
        return int(largest[0]), float(squares[0]), int(lowest.min())

    return inspect
