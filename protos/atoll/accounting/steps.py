"""What is accounted for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Steps:
    """Releases of one kind, each with fresh noise and a fresh draw.

    Attributes:
        noise_multiplier: standard deviation of the noise over what adding or removing one moves the sum by, at most.
        sample_rate: chance of each to be in a release, in (0, 1].
        count: how many.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    count: int = 1
