"""The fixed-point grid of a round: how updates become integers whose sum cannot overflow.

An update's value x becomes the integer ``q = rint(x * 2**fraction_bits)`` (ties to even) and enters the sum as
``q * w`` with the update's integer weight w.

The sum fits int64 for anything that the cohort sends. Let ``|x| <= max_abs = 2**m`` (anything else rejects the
update), f the fraction bits and W the total integer weight, ``W < 2**b`` with b the weight bits. ``2**(m+f)`` is an
integer, so rounding cannot pass it: ``|q| <= 2**(m+f)``. Hence every partial sum, in any order and any split, is at
most ``W * 2**(m+f) < 2**(b+m+f) <= 2**62`` because a grid exists only if ``b + m + f <= 62``. The accumulator refuses a
weight that would take W to ``2**b``, so the bound needs no trust in what participants declare or report.

Ratios of weights stay exact: an integer weight is the example count times one power of two for the whole round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from atoll.server.aggregation.errors import GridError

DEFAULT_MAX_ABS = 32.0
SUM_BITS = 62
VALUE_BITS = 50  # the kernel rounds in float64, whose integers are exact to 2**53
TARGET_WEIGHT_BITS = 24
MIN_FRACTION_BITS = 16
MAX_FRACTION_BITS = 52
MIN_MAX_ABS = 2.0**-24
NORM_ERROR = 2.0**-36
"""Relative error bound of a computed norm and of its product with a factor."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of one round; fixed when the round opens.

    Attributes:
        fraction_bits: f: values are rounded to multiples of ``2**-f``.
        max_abs: the largest admissible magnitude, a power of two.
        weight_shift: an integer weight is the example count shifted left by this many bits.
        weight_total_bits: b: the total integer weight stays below ``2**b``.
        clip: L2 norm C of a whole update; a larger update x enters the sum as ``x * C / norm``. 0: no clipping.

    Raises:
        GridError: if the parts break the bound of the module docstring or lie outside their ranges.
    """

    fraction_bits: int
    max_abs: float
    weight_shift: int
    weight_total_bits: int
    clip: float = 0.0

    def __post_init__(self) -> None:
        exponent = _exponent_of(self.max_abs)
        if not MIN_FRACTION_BITS <= self.fraction_bits <= MAX_FRACTION_BITS:
            raise GridError(
                f"fraction_bits {self.fraction_bits}: allowed are {MIN_FRACTION_BITS} to {MAX_FRACTION_BITS}"
            )
        if not 0 <= self.weight_shift < self.weight_total_bits:
            raise GridError(f"weight_shift {self.weight_shift}: allowed are 0 to {self.weight_total_bits - 1}")
        value_bits = exponent + self.fraction_bits
        if value_bits > VALUE_BITS or value_bits + self.weight_total_bits > SUM_BITS:
            raise GridError(
                f"max_abs {self.max_abs:g} and {self.fraction_bits} fraction bits need {value_bits} bits, of "
                f"{VALUE_BITS}, and {value_bits + self.weight_total_bits} with {self.weight_total_bits} weight bits, "
                f"of {SUM_BITS}",
                "let grid_for choose them",
            )
        if not 0.0 <= self.clip < math.inf:
            raise GridError(f"clip {self.clip}: allowed are norms above 0, or 0 for none")

    def factor(self, norm: float) -> float:
        """The factor, at most 1, that clips an update of this L2 norm to norm C.

        Args:
            norm: of the update, computed in float64 with a relative error below ``NORM_ERROR``; the factor is lowered
                by that error.

        Raises:
            GridError: if the norm is not finite: NaN would pass every comparison.
        """
        if not 0.0 <= norm < math.inf:
            raise GridError(f"norm {norm}: only finite updates are clipped", "refuse this one")
        allowed = self.clip * (1 - NORM_ERROR)
        return 1.0 if norm <= allowed or not self.clip else allowed / norm

    @property
    def scale(self) -> float:
        """``2**fraction_bits``, exactly."""
        return math.ldexp(1.0, self.fraction_bits)

    @property
    def resolution(self) -> float:
        """The distance between neighbouring grid values, ``2**-fraction_bits``; a mean is off by at most half of it."""
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def max_total_weight(self) -> int:
        """The largest total integer weight that the sum admits."""
        return (1 << self.weight_total_bits) - 1

    def weight_of(self, examples: int, staleness_factor: float = 1.0) -> int:
        """The integer weight of an update made from ``examples`` examples (1 for the uniform mean).

        ``examples << weight_shift``, times a staleness factor in (0, 1] for an update carried over from an earlier
        round, rounded to the nearest integer (ties to even, exactly) and at least 1.

        Raises:
            GridError: for no examples, for more examples than the whole cohort declared, or for an impossible factor.
        """
        if examples < 1:
            raise GridError(f"weight {examples}: an update counts at least 1 example", "reject it instead")
        if not 0.0 < staleness_factor <= 1.0:
            raise GridError(f"staleness factor {staleness_factor}: allowed are values above 0 up to 1")
        weight = max(1, round(Fraction(staleness_factor) * (examples << self.weight_shift)))
        if weight > self.max_total_weight:
            raise GridError(
                f"{examples} examples are more than the round's grid admits for all together "
                f"({self.max_total_weight >> self.weight_shift})",
                "limit reports to their declared weight",
            )
        return weight


def grid_for(total_declared_weight: int, max_abs: float = DEFAULT_MAX_ABS, carried_weight: int = 0) -> Grid:
    """The grid for a round: as many fraction bits as the cohort's weights leave.

    Args:
        total_declared_weight: maximum total that the invited members may report, in examples (for the uniform mean,
            their number).
        max_abs: largest admissible magnitude of an update's value, a power of two.
        carried_weight: examples of the updates carried over from earlier rounds; staleness only lowers their weight.

    Raises:
        GridError: for a total below 1, for a max_abs that is not a power of two, or if the two together leave fewer
            than 16 fraction bits.
    """
    total = total_declared_weight + carried_weight
    if total_declared_weight < 0 or carried_weight < 0 or total < 1:
        raise GridError(
            f"declared weight {total_declared_weight} and carried weight {carried_weight}: a round needs a total of "
            f"at least 1 and no negative weights"
        )
    exponent = _exponent_of(max_abs)
    weight_shift = max(0, TARGET_WEIGHT_BITS - total.bit_length())
    weight_total_bits = total.bit_length() + weight_shift
    fraction_bits = min(MAX_FRACTION_BITS, SUM_BITS - weight_total_bits - exponent)
    if fraction_bits < MIN_FRACTION_BITS:
        raise GridError(
            f"a total weight of {total} and max_abs {max_abs:g} leave {fraction_bits} fraction bits, at least "
            f"{MIN_FRACTION_BITS} are needed",
            "lower max_abs, lower max_weight, or weigh the participants equally",
        )
    return Grid(fraction_bits, max_abs, weight_shift, weight_total_bits)


def _exponent_of(max_abs: float) -> int:
    """M such that ``max_abs == 2**m``."""
    if not MIN_MAX_ABS <= max_abs <= 2.0**SUM_BITS:  # nor NaN
        raise GridError(f"max_abs {max_abs}: allowed are powers of two from {MIN_MAX_ABS:g}, for example 32")
    mantissa, exponent = math.frexp(max_abs)
    if mantissa != 0.5:
        raise GridError(
            f"max_abs {max_abs:g} is not a power of two",
            f"take {math.ldexp(0.5, exponent):g} or {math.ldexp(1.0, exponent):g}",
        )
    return exponent - 1
