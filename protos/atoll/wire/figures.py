"""How figures are written for people: privacy never better than it is, and numbers with their nouns.

An epsilon that is spent is an upper bound, so it is rounded up, and what is left of a limit down. For programs,
``--json`` and messages have every digit.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

DIGITS = 4
SET_DIGITS = 6
"""Of what somebody has set, a limit or target, which must not look smaller than what is spent of it."""


def figure(value: float | None, digits: int = DIGITS) -> str:
    """``value`` to so many significant digits, to the nearest; a dash for None, ``unbounded`` for infinity."""
    if value is None:
        return "-"
    return "unbounded" if math.isinf(value) else f"{value:.{digits}g}"


def bound(value: float | None, digits: int = DIGITS) -> str:
    """As ``figure``, rounded up: what is shown of an upper bound is one too."""
    return figure(_rounded(value, ROUND_CEILING, digits), digits)


def remainder(value: float | None, digits: int = DIGITS) -> str:
    """As ``figure``, rounded down: for what is left, and for lower bounds."""
    return figure(_rounded(value, ROUND_FLOOR, digits), digits)


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 flaw``, ``2 flaws``; ``plural`` where it is not the noun and an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def _rounded(value: float | None, rounding: str, digits: int) -> float | None:
    if value is None or not math.isfinite(value):
        return value
    return float(Context(prec=digits, rounding=rounding).create_decimal(repr(float(value))))  # 0.1 is no more
