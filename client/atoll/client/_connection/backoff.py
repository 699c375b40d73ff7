"""Exponential backoff with full jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Delays drawn uniformly from [0, min(cap, base * 2^n)), where n counts the failures in a row.

    Full jitter spreads the reconnects of many participants best (Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015).
    """

    base_s: float
    cap_s: float
    random: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_s(self, spread_s: float = 0.0) -> float:
        """Count one more failure; the delay before the next try.

        Args:
            spread_s: with a longer range than the ceiling, a delay from [0, spread_s), and after the first failure from
                [spread_s / 2, 3 * spread_s / 2). With delays from [0, spread_s) the first second after a long outage
                would bring twice as many participants as an average second: the remaining time of such a delay has its
                largest density, 2 / spread_s, at 0.
        """
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        if spread_s > ceiling and self.failures > 1:
            return self.random.uniform(0.5 * spread_s, 1.5 * spread_s)
        return self.random.uniform(0.0, max(ceiling, spread_s))

    def reset(self) -> None:
        """Restart with the shortest delays, after a success."""
        self.failures = 0
