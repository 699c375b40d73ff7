from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from atoll.server.aggregation import AggregationError, NewModel, OldModel, optimiser_named, write_next_model
from atoll.server.aggregation.grid import Grid
from atoll.server.aggregation.noised import PIECE, EmptySum, NoisedSum
from atoll.wire.layout import Dtype, Layout, TensorSpec
from tests.server.aggregation.test_accumulator import accumulator_of, ones

GRID = Grid(fraction_bits=20, max_abs=32.0, weight_shift=0, weight_total_bits=8)
SIZE = 2 * PIECE + 100


class Counting:
    """Noise whose value is its element's number."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def block(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        self.threads.add(threading.current_thread().name)
        return np.arange(start, stop, dtype=np.int64)


def read(noised: NoisedSum, cuts: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([noised.sum_block(a, b) for a, b in pairwise(cuts)])


@pytest.mark.parametrize("cuts", [(0, SIZE), (0, 1, 77, PIECE, PIECE, PIECE + 5, SIZE - 1, SIZE)])
def test_each_element_gets_its_noise_however_the_sum_is_read(cuts: Sequence[int]) -> None:
    noise = Counting()
    with NoisedSum(EmptySum(SIZE, GRID), noise, 5) as noised:
        assert np.array_equal(read(noised, cuts), np.arange(SIZE))
        assert noised.total_weight == 5
    assert threading.current_thread().name not in noise.threads


def test_noise_is_added_to_the_sum_which_stays_as_it_is() -> None:
    total = accumulator_of([ones("a"), ones("b")], 2)
    before = total.sum_block(0, total.size).copy()
    with NoisedSum(total, Counting(), 2) as noised:
        assert np.array_equal(read(noised, (0, 300, 1000)), before + np.arange(1000))
    assert np.array_equal(total.sum_block(0, total.size), before)


def test_the_pieces_are_kept_in_order() -> None:
    kept: list[npt.NDArray[np.int64]] = []
    places: list[int] = []

    def keep(piece: npt.NDArray[np.int64], start: int) -> None:
        kept.append(piece)
        places.append(start)

    with NoisedSum(EmptySum(SIZE, GRID), Counting(), 1, keep) as noised:
        read(noised, (0, 10, SIZE))
    assert np.array_equal(np.concatenate(kept), np.arange(SIZE))
    assert places == [0, PIECE, 2 * PIECE]


def test_a_sum_is_read_from_front_to_back_once() -> None:
    with NoisedSum(EmptySum(SIZE, GRID), Counting(), 1) as noised:
        noised.sum_block(0, 10)
        with pytest.raises(AggregationError, match="element 5 is asked for after element 9"):
            noised.sum_block(5, 20)


def test_an_empty_private_round_moves_the_model_by_its_noise_over_the_fixed_weight() -> None:
    layout = Layout((TensorSpec("w", (1000,), Dtype.FLOAT32),))
    sink = io.BytesIO()
    with NoisedSum(EmptySum(1000, GRID), Counting(), 4) as noised:
        write_next_model(layout, noised, optimiser_named("fedavg"), OldModel(bytes(4000)), NewModel(sink))
    moved = np.frombuffer(sink.getvalue(), "<f4")
    assert np.array_equal(moved, (np.arange(1000) / (4 * GRID.scale)).astype(np.float32))
