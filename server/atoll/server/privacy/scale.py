"""The noise's standard deviation in grid units, and a grid on which sum and noise fit.

One participant's clipped update, in grid units, is ``q = rint(x * 2**f)`` with ``|x| <= C``. Rounding moves each of d
elements by less than 1 (half a unit, and the float64 product before it), so ``|q| < C * 2**f + sqrt(d)``: the noise is
calibrated to that sensitivity. With f as below, the second term is below a millionth of the first for any model that
fits on a disk, but it is counted.
"""

from __future__ import annotations

import math

from atoll.server.aggregation.errors import GridError
from atoll.server.aggregation.grid import MAX_FRACTION_BITS, MIN_FRACTION_BITS, SUM_BITS, VALUE_BITS, Grid

NOISE_BITS = 48
"""Maximum number of bits of the noise's standard deviation; 13 standard deviations plus a full sum stay below 2**63."""
LEAST_NOISE = 2.0**16
"""Minimum standard deviation of the noise in grid units, so that it costs what is charged for continuous noise."""


def private_grid(total_weight: int, max_abs: float, clip: float, noise_weight: float) -> Grid:
    """The grid of a private round: integer weights are not shifted, and the noise has at most ``NOISE_BITS`` bits.

    Args:
        total_weight: bound on the sum of the cohort's weights. It must not depend on who was drawn, since the grid's
            resolution is visible in a release.
        max_abs: largest admissible magnitude of an update's value, a power of two.
        clip: L2 norm C that updates are clipped to.
        noise_weight: standard deviation of the noise on the weighted sum of clipped updates, in units of C.

    Raises:
        GridError: if weights, values and noise leave fewer than 16 fraction bits, or the noise is below ``LEAST_NOISE``
            units.
    """
    exponent = math.frexp(max_abs)[1] - 1
    bits = total_weight.bit_length()
    fraction_bits = min(
        MAX_FRACTION_BITS,
        VALUE_BITS - exponent,
        SUM_BITS - 1 - bits - exponent,
        NOISE_BITS - 1 - math.ceil(math.log2(noise_weight * clip)),
    )
    if fraction_bits < MIN_FRACTION_BITS:
        raise GridError(
            f"a total weight of {total_weight}, max_abs {max_abs:g} and noise of {noise_weight * clip:g} leave "
            f"{fraction_bits} fraction bits, at least {MIN_FRACTION_BITS} are needed",
            "lower clip, max_abs or max_weight, or weigh the participants equally",
        )
    units = noise_weight * clip * 2.0**fraction_bits
    if units < LEAST_NOISE:
        raise GridError(
            f"noise of standard deviation {noise_weight * clip:g} is {units:.4g} units of the sum's grid, whose "
            f"{fraction_bits} fraction bits a total weight of {total_weight} and max_abs {max_abs:g} allow; at least "
            f"{LEAST_NOISE:g} are needed for the noise to cost no more than it is charged",
            "raise clip or the noise, or lower max_abs or max_weight",
        )
    return Grid(fraction_bits, max_abs, 0, bits, clip)


def least_clip(grid: Grid, noise_weight: float) -> float:
    """The smallest clip norm for which the next private grid still has noise of ``LEAST_NOISE`` units.

    A smaller norm gets a grid that is at least as fine; the last factor allows for rounding.
    """
    return LEAST_NOISE / (noise_weight * grid.scale) * (1 + 1e-9)


def sensitivity(grid: Grid, elements: int, norm: float) -> float:
    """Bound on the L2 norm of one unit's part in a sum, in grid units, including rounding; see the module docstring.

    Args:
        grid: of the sum.
        elements: of the sum.
        norm: bound before it is rounded: the clip norm, or the norm of a row (two sums that differ in a row are both
            rounded, each element by half a unit at most).
    """
    return norm * grid.scale + math.sqrt(elements)
