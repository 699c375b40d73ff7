"""The start of a certificate's validity: before its issue, for peers whose clocks are slow."""

from __future__ import annotations

# A peer whose clock is an hour slow must accept a certificate made just now: an hour, and half of one to spare.
CLOCK_SKEW_S = 1.5 * 3600.0
_SKEW_SHARE = 0.1
"""The skew is at most this share of the life that is left: holders count from ``not_before`` when to renew."""


def not_before_of(issued_at: float, not_after: float) -> float:
    """The start of the validity of a certificate that is issued now. All times are epoch seconds UTC."""
    return issued_at - min(CLOCK_SKEW_S, _SKEW_SHARE * (not_after - issued_at))


def issued_at_of(not_before: float, not_after: float) -> float:
    """When a certificate was issued, from its validity: the inverse of ``not_before_of``."""
    return min(not_before + CLOCK_SKEW_S, (not_before + _SKEW_SHARE * not_after) / (1 + _SKEW_SHARE))
