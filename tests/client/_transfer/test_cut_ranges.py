from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from atoll.client._transfer.elements import cut_ranges
from atoll.wire.blocks import BLOCK
from atoll.wire.chunks import ElementRange
from tests.wire.strategies import element_ranges


def elements(span: ElementRange) -> list[int]:
    return [span.offset + i * span.stride + j for i in range(span.count) for j in range(span.block)]


@given(st.lists(element_ranges(), max_size=4), st.integers(1, 5000))
def test_the_same_elements_in_the_same_order_in_pieces_that_fit(ranges: list[ElementRange], chunk: int) -> None:
    pieces = list(cut_ranges(ranges, chunk))
    assert [e for piece in pieces for e in elements(piece)] == [e for span in ranges for e in elements(span)]
    assert all(piece.size <= chunk for piece in pieces)


@given(element_ranges(), st.integers(1, 5000))
def test_no_more_pieces_than_needed(span: ElementRange, chunk: int) -> None:
    """A contiguous run is cut into full chunks; blocks that fit are never cut."""
    pieces = list(cut_ranges([span], chunk))
    if span.contiguous:
        assert len(pieces) == -(-span.size // chunk)
    elif span.block <= chunk:
        assert len(pieces) == -(-span.count // (chunk // span.block))
        assert all(piece.size % span.block == 0 for piece in pieces)


@given(element_ranges(), st.integers(1, 40))
def test_pieces_are_whole_groups_where_that_can_be(span: ElementRange, groups: int) -> None:
    """Only a range's last piece, and blocks of odd lengths, may have a short group."""
    chunk = groups * BLOCK
    pieces = list(cut_ranges([span], chunk, BLOCK))
    assert [e for piece in pieces for e in elements(piece)] == elements(span)
    assert all(piece.size <= chunk for piece in pieces)
    if span.contiguous:
        assert all(piece.size == chunk for piece in pieces[:-1])
    elif span.block < chunk and math.lcm(span.block, BLOCK) <= chunk:
        assert all(piece.size % BLOCK == 0 for piece in pieces[:-1])
