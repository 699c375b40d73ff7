"""NumPy gives the bits of the compiled loops."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.server.aggregation import Grid, Inspection, grid_for, kernel
from atoll.server.aggregation._numpy_loops import CALL_ELEMENTS, MOST_ELEMENTS, Allowance
from atoll.server.aggregation.kernel import average, fold, inspect, mean
from atoll.wire.chunks import ElementRange
from atoll.wire.encoding import PLAIN, Encoding, encode

pytestmark = pytest.mark.slow

T = TypeVar("T")
GRID = grid_for(1797)
CLIPPING = Grid(fraction_bits=16, max_abs=2.0, weight_shift=0, weight_total_bits=41)
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, 2.0, -2.0, 1e-45, 1e300, 65504.0, 3e38]
plain = st.sampled_from(PLAIN)
seeds = st.integers(0, 2**32 - 1)


def both(work: Callable[[], T]) -> tuple[T, T]:
    """The results of NumPy and of the compiled loops."""
    found = list[T]()
    with pytest.MonkeyPatch.context() as patch:
        for left in (math.inf, 0):
            patch.setattr(kernel, "allowance", Allowance(left))
            found.append(work())
            assert (kernel.allowance.left == 0) == (left == 0)
    return found[0], found[1]


def payload_of(count: int, seed: int, encoding: Encoding, *, special: bool) -> bytes:
    random = np.random.default_rng(seed)
    values = random.standard_normal(count) * 10.0 ** random.integers(-8, 4, count)
    if special and count:
        values[random.integers(0, count, 5)] = random.choice(SPECIAL, 5)
    return encode(values, encoding).tobytes()


def bits_of(found: Inspection) -> tuple[bool, str, bytes]:
    squares = np.float64(found.sum_squares) if found.finite else np.float64(0)  # otherwise without a meaning
    return found.finite, repr(found.max_abs), squares.tobytes()


@given(st.integers(0, 1500), seeds, plain, st.booleans())
def test_inspect(count: int, seed: int, encoding: Encoding, special: bool) -> None:
    payload = payload_of(count, seed, encoding, special=special)
    by_numpy, compiled = both(lambda: bits_of(inspect(payload, encoding)))
    assert by_numpy == compiled


@given(
    st.builds(lambda offset, block, gap, count: ElementRange(offset, block, block + gap, count),
              st.integers(0, 50), st.integers(1, 300), st.integers(0, 50), st.integers(1, 5)),
    seeds,
    plain,
    st.booleans(),
    st.integers(-(2**20), 2**20),
    st.sampled_from([GRID, CLIPPING]),
)  # fmt: skip
def test_fold(target: ElementRange, seed: int, encoding: Encoding, first: bool, weight: int, grid: Grid) -> None:
    payload = b"\x01" + payload_of(target.size, seed, encoding, special=True)
    start = np.random.default_rng(seed).integers(-(2**50), 2**50, target.stop + 3)

    def work() -> tuple[int, bytes]:
        sums = start.copy()
        unaligned = memoryview(payload)[1:]
        refused = fold(sums, target, unaligned, encoding, weight, grid, factor=0.75, first=first)
        return refused, sums.tobytes()

    by_numpy, compiled = both(work)
    assert by_numpy == compiled


@given(st.integers(0, 1000), seeds, st.integers(0, 50), st.floats(1e-3, 1e30), st.floats(-3.0, 3.0))
def test_mean_and_average(count: int, seed: int, bits: int, divisor: float, lr: float) -> None:
    random = np.random.default_rng(seed)
    sums = random.integers(-(2**bits), 2**bits, count, endpoint=True) * random.integers(1, 2**12, count)
    old = random.standard_normal(count, np.float32)

    def averaged() -> tuple[tuple[bool, str, bytes], bytes]:
        new = np.empty(count, np.float32)
        return bits_of(average(sums, divisor, lr, old.data, new)), new.tobytes()

    def divided() -> bytes:
        means: npt.NDArray[np.float64] = np.empty(count)
        mean(sums, divisor, means)
        return means.tobytes()

    for work in (averaged, divided):
        by_numpy, compiled = both(work)
        assert by_numpy == compiled


def test_an_allowance_ends_and_leaves_large_calls_alone() -> None:
    allowance = Allowance(3.0 * (100 + CALL_ELEMENTS))
    assert not allowance.takes(MOST_ELEMENTS + 1)
    assert allowance.covers(100, 3)
    assert not allowance.covers(100, 4)
    assert not allowance.covers(MOST_ELEMENTS + 1, 0)
    assert [allowance.takes(100) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(("updates", "loaded"), [(100, False), (10_000_000, True)])
def test_a_process_loads_numba_for_many_updates_only(updates: int, loaded: bool) -> None:
    code = f"""
import sys
import numpy as np
from atoll.server.aggregation import Accumulator, grid_for, inspect, warm_for
from atoll.wire.encoding import Encoding
warm_for(Encoding.FLOAT32, elements=1000, updates={updates})
assert inspect(np.ones(1000, np.float32).data, Encoding.FLOAT32).sum_squares == 1000
assert ("numba" in sys.modules) == {loaded}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
