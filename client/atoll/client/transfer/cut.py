"""Cutting the elements that one uploads into chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from atoll.wire.chunks import ElementRange


def cut_ranges(ranges: Iterable[ElementRange], chunk_elements: int, group: int = 1) -> Iterator[ElementRange]:
    """The same elements in ranges of at most ``chunk_elements``, in the given order.

    A strided range keeps whole blocks together while they fit; a block that is larger than a chunk is cut itself. All
    but the last piece of a range (of a block, where blocks are cut) have a multiple of ``group`` elements, if a chunk
    has and, of a strided range, so many whole blocks fit one.
    """
    for span in ranges:
        if span.contiguous:
            yield from _cut_run(span.offset, span.size, chunk_elements)
        elif span.block >= chunk_elements:
            for index in range(span.count):
                yield from _cut_run(span.offset + index * span.stride, span.block, chunk_elements)
        else:
            blocks, together = chunk_elements // span.block, group // math.gcd(group, span.block)
            yield from _cut_strided(span, blocks - blocks % together or blocks)


def _cut_run(offset: int, length: int, chunk_elements: int) -> Iterator[ElementRange]:
    for start in range(offset, offset + length, chunk_elements):
        yield ElementRange.run(start, min(chunk_elements, offset + length - start))


def _cut_strided(span: ElementRange, blocks: int) -> Iterator[ElementRange]:
    for first in range(0, span.count, blocks):
        count = min(blocks, span.count - first)
        offset = span.offset + first * span.stride
        yield ElementRange(offset, span.block, span.stride, count)
