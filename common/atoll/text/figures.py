"""Figures as text: bounds on privacy rounded to the safe side, and numbers with their nouns.

A spent epsilon is an upper bound, so it is rounded up; the rest of a limit is rounded down. ``--json`` and messages
have every digit.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context

DIGITS = 4
SET_DIGITS = 6
"""Digits of a limit or target set by a user, which must not look smaller than the spent part."""
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def figure(value: float | None, digits: int = DIGITS) -> str:
    """``value`` rounded to significant digits; a dash for None, ``unbounded`` for infinity."""
    if value is None:
        return "-"
    return "unbounded" if math.isinf(value) else f"{value:.{digits}g}"


def bound(value: float | None, digits: int = DIGITS) -> str:
    """As ``figure``, rounded up, so that a displayed upper bound remains one."""
    return figure(_rounded(value, ROUND_CEILING, digits), digits)


def remainder(value: float | None, digits: int = DIGITS) -> str:
    """As ``figure``, rounded down, for lower bounds and for the rest of a limit."""
    return figure(_rounded(value, ROUND_FLOOR, digits), digits)


def in_bytes(value: float) -> str:
    """A number of bytes with a decimal unit, to three digits: ``3.2 GB``."""
    factor, unit = next(((factor, unit) for factor, unit in _BYTES if value >= factor), (1.0, "B"))
    return f"{value / factor:.3g} {unit}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 flaw``, ``2 flaws``; ``plural`` for a noun that does not take an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def _rounded(value: float | None, rounding: str, digits: int) -> float | None:
    if value is None or not math.isfinite(value):
        return value
    return float(Context(prec=digits, rounding=rounding).create_decimal(repr(float(value))))  # repr: 0.1 stays 0.1
