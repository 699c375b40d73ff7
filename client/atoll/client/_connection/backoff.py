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
        """Count one more failure; the delay before the next try. ``spread_s`` is the smallest range to draw from."""
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return self.random.uniform(0.0, max(ceiling, spread_s))

    def reset(self) -> None:
        """Begin again with the shortest delays, after a success."""
        self.failures = 0
