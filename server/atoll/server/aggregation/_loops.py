"""The loops that numba compiles; ``kernel`` and ``optimisers`` wrap them with types.

They are simple enough for LLVM to vectorise: no branches, only calls that are inlined, slices instead of index sums.

- Rounding. ``t = x*scale + 1.5*2**52`` rounds to the nearest integer, ties to even, by the float64 addition itself, and
  leaves the integer in the low bits of t: rint and conversion in one addition, exact for ``|x*scale| <= 2**51``.
- Order of magnitudes. The bits of ``|x|``, read as an integer, order as the values do; infinity and NaN come last. So
  one integer maximum gives the largest magnitude and whether all values are finite.
- Sums of squares go to ``LANES`` float64 running sums that are added pairwise at the end: the order of additions, hence
  the result, is the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from atoll.server.aggregation._jit import callable_from_loops

LANES = 128
ROUNDER = 1.5 * 2.0**52
ROUNDER_BITS = 0x4338000000000000

Vector = npt.NDArray[Any]
Fold = Callable[[npt.NDArray[np.int64], Vector, tuple[int, int, int, int], int, float, float], int]
Inspect = Callable[[Vector, Vector, int], tuple[int, float]]
Widen = Callable[[Any], Any]
IntoSum = Callable[[npt.NDArray[np.int64], int, Any], None]
SecondMoment = Callable[[float, float, float], float]
Settings = tuple[float, float, float, float]
Adaptive = Callable[[Vector, Vector, Vector, Vector, Settings, Vector, Vector, Vector], None]


@callable_from_loops
def from_float(value: np.floating[Any]) -> np.float64:
    """Widen a float32 or float64."""
    return np.float64(value)


@callable_from_loops
def from_bfloat16(bits: np.uint16) -> np.float64:
    """Widen bfloat16 bits, exactly."""
    return np.float64(np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32))


@callable_from_loops
def from_float16(bits: np.uint16) -> np.float64:
    """Widen float16 bits (1 sign, 5 exponent, 10 fraction), exactly; infinity and NaN both become infinity.

    The exponent is re-biased by 112; a subnormal is read as the normal ``2**-14 * (1 + fraction)`` less ``2**-14``, so
    that no float32 subnormal arises, which a thread may be set to flush to zero.
    """
    magnitude = np.uint32((np.uint32(bits) & np.uint32(0x7FFF)) << np.uint32(13))
    normal = np.uint32(magnitude + np.uint32(112 << 23)).view(np.float32)
    subnormal = np.uint32(magnitude + np.uint32(113 << 23)).view(np.float32) - np.float32(2.0**-14)
    finite = subnormal if magnitude < np.uint32(1 << 23) else normal
    value = np.float64(finite if magnitude < np.uint32(31 << 23) else np.float32(np.inf))
    return value if bits < np.uint16(0x8000) else -value


@callable_from_loops
def add(sums: npt.NDArray[np.int64], at: int, term: Any) -> None:
    """Add to the target."""
    sums[at] += term


@callable_from_loops
def put(sums: npt.NDArray[np.int64], at: int, term: Any) -> None:
    """Overwrite the target without reading it."""
    sums[at] = term


@callable_from_loops
def on_grid(value: Any, scale: float, limit: float) -> Any:
    """The grid's integer for a float64 value (see "Rounding" above); 0 if it is not finite or beyond ``limit``."""
    rounded = np.float64((value if abs(value) <= limit else 0.0) * scale + ROUNDER)
    return rounded.view(np.int64) - ROUNDER_BITS


@callable_from_loops
def pairwise(squares: Vector, largest: Vector) -> None:
    """Combine the lanes, in place, into the first one: the sum and the maximum."""
    width = LANES // 2
    while width:
        for lane in range(width):
            squares[lane] += squares[lane + width]
            largest[lane] = max(largest[lane], largest[lane + width])
        width //= 2


def fold_with(widen: Widen, into_sum: IntoSum) -> Fold:
    """The loop that adds or puts ``rint(x * scale) * weight`` of each value; see the module docstring for the rounding.

    Its ``target`` is (offset, block, stride, count) as in ``atoll.wire.chunks.ElementRange``. It returns how many
    values were not finite or beyond ``limit``; those count as 0.
    """

    def fold(
        sums: npt.NDArray[np.int64],
        values: Vector,
        target: tuple[int, int, int, int],
        weight: int,
        scale: float,
        limit: float,
    ) -> int:
        offset, block, stride, count = target
        refused = 0
        for index in range(count):
            start = offset + index * stride
            into = sums[start : start + block]
            part = values[index * block : index * block + block]
            for at in range(block):
                value = widen(part[at])
                into_sum(into, at, on_grid(value, scale, limit) * weight)
                refused += not abs(value) <= limit
        return refused

    return fold


def inspect_with(widen: Widen) -> Inspect:
    """The loop that returns the bits of the largest magnitude and the sum of squares.

    It takes the values, the same memory as integers of the same width, and the mask that clears their sign bit.
    """

    def inspect(values: Vector, bits: Vector, mask: int) -> tuple[int, float]:
        squares = np.zeros(LANES, np.float64)
        largest = np.zeros(LANES, bits.dtype)
        whole = values.size // LANES * LANES
        for start in range(0, whole, LANES):
            part = values[start : start + LANES]
            part_bits = bits[start : start + LANES]
            for lane in range(LANES):
                value = widen(part[lane])
                squares[lane] += value * value
                largest[lane] = max(largest[lane], part_bits[lane] & mask)
        for at in range(whole, values.size):
            value = widen(values[at])
            squares[at - whole] += value * value
            largest[at - whole] = max(largest[at - whole], bits[at] & mask)
        pairwise(squares, largest)
        return int(largest[0]), float(squares[0])

    return inspect


def mean(sums: npt.NDArray[np.int64], divisor: float, means: npt.NDArray[np.float64]) -> None:
    """Divide: each sum is rounded to float64 once, each quotient once."""
    for at in range(sums.size):
        means[at] = np.float64(sums[at]) / divisor


def average(
    sums: npt.NDArray[np.int64], old: Vector, settings: tuple[float, float], mask: int, new: Vector, bits: Vector
) -> tuple[int, float]:
    """The mean, its norm, the new weights and whether they are finite, in one pass; settings are (divisor, lr).

    Does the same operations in the same order as ``mean``, ``inspect``, ``old + lr * mean`` in float64 and a rounding
    to the type of ``new``. ``bits`` is the memory of ``new`` as integers. Returns the bits of the largest new magnitude
    and the sum of squares of the means.
    """
    divisor, lr = settings
    squares = np.zeros(LANES, np.float64)
    largest = np.zeros(LANES, bits.dtype)
    whole = sums.size // LANES * LANES
    for start in range(0, whole, LANES):
        part = sums[start : start + LANES]
        part_old = old[start : start + LANES]
        part_new = new[start : start + LANES]
        part_bits = bits[start : start + LANES]
        for lane in range(LANES):
            value = np.float64(part[lane]) / divisor
            squares[lane] += value * value
            part_new[lane] = value * lr + part_old[lane]
        for lane in range(LANES):
            largest[lane] = max(largest[lane], part_bits[lane] & mask)
    for at in range(whole, sums.size):
        value = np.float64(sums[at]) / divisor
        squares[at - whole] += value * value
        new[at] = value * lr + old[at]
        largest[at - whole] = max(largest[at - whole], bits[at] & mask)
    pairwise(squares, largest)
    return int(largest[0]), float(squares[0])


def adaptive_with(second_moment: SecondMoment) -> Adaptive:
    """The loop of Reddi et al. 2021, Algorithm 2, with the given rule for v (from v, the squared mean update, beta2).

    Weights and mean update are float64, momentum and second moment float32; settings are (lr, beta1, beta2, tau).
    """

    def step(
        weights: Vector,
        mean_update: Vector,
        momentum: Vector,
        second: Vector,
        settings: Settings,
        new_weights: Vector,
        new_momentum: Vector,
        new_second: Vector,
    ) -> None:
        lr, beta1, beta2, tau = settings
        for at in range(weights.size):
            delta = mean_update[at]
            first = beta1 * np.float64(momentum[at]) + (1.0 - beta1) * delta
            moved = second_moment(np.float64(second[at]), delta * delta, beta2)
            new_weights[at] = weights[at] + lr * first / (math.sqrt(moved) + tau)
            new_momentum[at] = first
            new_second[at] = moved

    return step


@callable_from_loops
def adagrad(second: float, square: float, beta2: float) -> float:  # noqa: ARG001 - one signature for all rules
    """V + Δ²."""
    return second + square


@callable_from_loops
def adam(second: float, square: float, beta2: float) -> float:
    """beta2 v + (1 - beta2) Δ²."""
    return beta2 * second + (1.0 - beta2) * square


@callable_from_loops
def yogi(second: float, square: float, beta2: float) -> float:
    """V - (1 - beta2) Δ² sign(v - Δ²)."""
    step = (1.0 - beta2) * square
    return second - step if second > square else (second + step if second < square else second)
