"""Pieces of partial sums: every int64 survives, in as few bytes as the largest needs."""

import numpy as np
import pytest

from atoll.server.errors import InvalidRequestError
from atoll.server.gateway.pieces import PIECE, bounds_of, pack, piece_count, unpack


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([0], 1),
        ([127, -128], 1),
        ([128], 2),
        ([-129], 2),
        ([2**39 - 1, -(2**39)], 5),
        ([2**39], 6),
        ([2**63 - 1, -(2**63)], 8),
    ],
)
def test_a_piece_is_as_wide_as_its_largest_sum(values: list[int], width: int) -> None:
    sums = np.array(values, np.int64)
    found, payload = pack(sums)
    assert (found, len(payload)) == (width, width * len(values))
    assert unpack(found, payload, len(values)).tolist() == values


def test_every_width_gives_back_what_was_packed() -> None:
    random = np.random.default_rng(3)
    for bits in range(1, 64):
        sums = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), 1000, np.int64, endpoint=False)
        width, payload = pack(sums)
        assert np.array_equal(unpack(width, payload, 1000), sums)


@pytest.mark.parametrize(("width", "size"), [(0, 0), (9, 90), (4, 39), (4, 41)])
def test_what_does_not_fit_is_refused(width: int, size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{size} bytes of width {width} for 10 sums"):
        unpack(width, bytes(size), 10)


def test_the_last_piece_may_be_shorter() -> None:
    assert piece_count(PIECE) == 1
    assert piece_count(PIECE + 1) == 2
    assert bounds_of(1, PIECE + 1) == (PIECE, PIECE + 1)
