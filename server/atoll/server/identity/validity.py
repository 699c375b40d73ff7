"""The start of a certificate's validity, which is before its issue for peers with slow clocks."""

from __future__ import annotations

# a peer whose clock is an hour slow must accept a certificate made just now; half an hour to spare
CLOCK_SKEW_S = 1.5 * 3600.0
_SKEW_SHARE = 0.1
"""Maximum skew as a share of the remaining lifetime, since holders time their renewal from ``not_before``."""


def not_before_of(issued_at: float, not_after: float) -> float:
    """The start of validity of a certificate that is issued at ``now``. All times are epoch seconds UTC."""
    return issued_at - min(CLOCK_SKEW_S, _SKEW_SHARE * (not_after - issued_at))


def issued_at_of(not_before: float, not_after: float) -> float:
    """The time of issue, computed from a certificate's validity: the inverse of ``not_before_of``."""
    return min(not_before + CLOCK_SKEW_S, (not_before + _SKEW_SHARE * not_after) / (1 + _SKEW_SHARE))
