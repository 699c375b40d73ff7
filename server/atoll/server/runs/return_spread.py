"""Over how long participants are asked to spread their return, should they lose their connections together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RETURNS_PER_S = 250.0
"""Participants that lost their connection together are asked to keep to this pace (TLS, check-in) coming back."""
STEP = 1.5
"""A spread is good for so many times the participants that it was told to, so that not each one changes it."""
LEAST = 50
"""Participants that every spread suffices for: they come back within 0.2 s, a client's shortest delay."""
SHRINK_AFTER_S = 600.0
"""So long a population must be smaller before it is told a shorter spread: it may be about to come back."""


def return_spread_s(count: int) -> float:
    """Seconds over which so many participants should spread their return."""
    return count / RETURNS_PER_S


@dataclass
class ReturnSpread:
    """The spread for the population that is connected now; it changes in steps, as the population does.

    Attributes:
        clock: seconds.
        suffices_for: participants that keep to the pace with this spread.
    """

    clock: Callable[[], float]
    suffices_for: int = LEAST
    _small_since: float | None = None

    @property
    def seconds(self) -> float:
        """What participants are told."""
        return return_spread_s(self.suffices_for)

    def adjust(self, connected: int) -> bool:
        """Follow the population; whether those connected are to be told anew."""
        if connected > self.suffices_for:
            self.suffices_for = max(int(STEP * self.suffices_for), connected)
            self._small_since = None
            return True
        if self.suffices_for == LEAST or connected * STEP**2 > self.suffices_for:
            self._small_since = None
            return False
        if self._small_since is None:
            self._small_since = self.clock()
        if self.clock() - self._small_since < SHRINK_AFTER_S:
            return False
        self.suffices_for = max(LEAST, int(STEP * connected))
        self._small_since = None
        return True
