"""The seconds over which participants spread their return after they lost their connections together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

RETURNS_PER_S = 250.0
"""Participants per second that may return after an outage; each costs a TLS handshake and a check-in."""
STEP = 1.5
"""Factor of headroom over the connected participants, so that not every newcomer changes the spread."""
LEAST = 50
"""Every spread suffices for this many participants: they return within a client's shortest delay, 0.2 s."""
LONGEST_DELAY = 1.5
"""After its first try a participant waits between half its spread and this multiple of it. A fleet then returns evenly,
even after an outage of several tries."""
SHRINK_AFTER_S = 600.0
"""Seconds that a population must stay smaller before its spread shrinks: participants may be about to return."""


def return_spread_s(count: int) -> float:
    """Seconds over which ``count`` participants should spread their return."""
    return count / RETURNS_PER_S


@dataclass
class ReturnSpread:
    """The spread for the connected population; it changes in steps, not with every participant.

    Attributes:
        clock: seconds.
        suffices_for: number of participants that keep to the rate with this spread.
    """

    clock: Callable[[], float]
    suffices_for: int = LEAST
    _small_since: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds that participants receive."""
        return return_spread_s(self.suffices_for)

    def adjust(self, connected: int) -> bool:
        """Adjust to the population; returns whether connected participants need the new spread."""
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
