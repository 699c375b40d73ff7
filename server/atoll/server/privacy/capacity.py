"""The capacity of a private round: the number of members that its sum's grid has room for, equal in all rounds.

The grid's resolution is visible in a release, so it must not depend on how many members were drawn. Correlated noise
also needs one grid from the first round to the last. At most ``most_members`` are therefore invited. A Poisson draw
must not be truncated, since it would no longer be the draw that is accounted for. ``most_eligible`` limits the
candidates instead, so that a draw is too large with probability below 2**-64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from blake3 import blake3

SPARE = 16
"""Capacity of a round as a multiple of the planned cohort."""
FEWEST = 64
"""Minimum capacity of a round: small cohorts are exceeded by a large factor more often."""
_LOG_CHANCE = -64 * math.log(2)


def most_members(size: int) -> int:
    """Maximum number of members of a round that is planned for ``size``."""
    return max(SPARE * size, FEWEST)


def most_eligible(size: int, rate: float) -> int:
    """Maximum number of candidates of a Poisson draw that exceeds ``most_members`` with probability below 2**-64.

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
    """At most ``most`` of the names, rotated from round to round; the choice depends on nothing secret.

    Args:
        names: to choose from.
        most: maximum number of names.
        number: the round's number.
    """
    return set(sorted(names, key=lambda name: blake3(f"{number}/{name}".encode()).digest())[:most])
