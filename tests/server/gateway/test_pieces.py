"""Pieces of partial sums: every int64 survives, in as few bytes as the largest needs."""

import numpy as np
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.gateway.pieces import PIECE, Piece, bounds_of, pack, piece_count, unpack


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([0], 1),
        ([127, -128], 1),
        ([129], 2),
        ([-129], 2),
        ([2**39 - 1, -(2**39)], 5),
        ([2**39 + 1], 6),
        ([2**63 - 1, -(2**63)], 8),
    ],
)
def test_a_piece_is_as_wide_as_its_largest_sum(values: list[int], width: int) -> None:
    sums = np.array(values, np.int64)
    piece = pack(sums)
    assert (piece.width, len(piece.payload)) == (width, width * len(values))
    assert unpack(piece, len(values)).tolist() == values


def test_every_width_gives_back_what_was_packed() -> None:
    random = np.random.default_rng(3)
    for bits in range(1, 64):
        sums = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), 1000, np.int64, endpoint=False)
        assert np.array_equal(unpack(pack(sums), 1000), sums)


def test_low_bits_that_no_sum_has_are_not_sent() -> None:
    sums = np.array([3 << 40, -(5 << 40), 0], np.int64)
    piece = pack(sums)
    assert (piece.shift, piece.width) == (40, 1)
    assert np.array_equal(unpack(piece, 3), sums)


@pytest.mark.parametrize(("shift", "width", "size"), [(0, 0, 0), (0, 9, 90), (0, 4, 39), (0, 4, 41), (64, 1, 10)])
def test_what_does_not_fit_is_refused(shift: int, width: int, size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{size} bytes of width {width}, shifted by {shift}, for 10 sums"):
        unpack(Piece(shift, width, bytes(size)), 10)


def test_what_passes_64_bits_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="sums shifted by 60 pass 64 bits"):
        unpack(Piece(60, 1, b"\x7f"), 1)


def test_the_last_piece_may_be_shorter() -> None:
    assert piece_count(PIECE) == 1
    assert piece_count(PIECE + 1) == 2
    assert bounds_of(1, PIECE + 1) == (PIECE, PIECE + 1)
