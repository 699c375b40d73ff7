"""How many a private round has room for: its sum's grid is made for so many, and is the same in every round.

The grid's fineness is visible in what is released, so it must not tell how many were drawn; and correlated noise needs
one grid from the first round to the last. So no more than ``most_members`` are ever invited. Where the random draw is
counted on, cutting it off would make it another draw than the one that is accounted for: there so few are in it
(``most_eligible``) that it comes to that with a chance below 2**-64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from blake3 import blake3

SPARE = 16
"""Room for so many times the planned cohort."""
FEWEST = 64
"""Room for so many at least: of small cohorts multiples are drawn more often."""
_LOG_CHANCE = -64 * math.log(2)


def most_members(size: int) -> int:
    """Members of a round whose planned number is ``size``, at most."""
    return max(SPARE * size, FEWEST)


def most_eligible(size: int, rate: float) -> int:
    """How many may be in a Poisson draw that more than ``most_members`` come out of with a chance below 2**-64.

    By Chernoff's bound: P(X >= a) <= exp(a - mu - a ln(a / mu)) for a mean of mu below a.
    """
    beyond = most_members(size) + 1
    low, high = 0.0, float(beyond)
    while high - low > 1e-9 * beyond:
        mean = (low + high) / 2
        if beyond - mean - beyond * math.log(beyond / mean) < _LOG_CHANCE:
            low = mean
        else:
            high = mean
    return max(most_members(size), int(low / rate))


def rotated(names: Iterable[str], most: int, number: int) -> set[str]:
    """At most so many of them, others in each round; who does not depend on anything secret.

    Args:
        names: to choose from.
        most: how many.
        number: of the round.
    """
    return set(sorted(names, key=lambda name: blake3(f"{number}/{name}".encode()).digest())[:most])
