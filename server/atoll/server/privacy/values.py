"""What the privacy account speaks of: who is protected against what, how the cohort was drawn, what a release costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Adjacency(StrEnum):
    """Which two worlds must look alike. The unit is one participant: everything that it sends in all rounds.

    ADD_REMOVE: its contributions are there, or zero in their place. Under Poisson sampling this is the same as its
        being in the population or not, as the sum is divided by a fixed number. Where availability decides who is
        drawn, who was drawn is not part of what is protected: only what they sent.
    REPLACE_ONE: its contributions are exchanged for anybody else's: the sum moves by up to twice the clip norm.
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"


class Sampling(StrEnum):
    """Which amplification by sampling an event may count.

    POISSON: everyone independently with probability `sample_rate`.
    NONE: no amplification.
    """

    POISSON = "poisson"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Event:
    """What releases cost.

    Attributes:
        noise_multiplier: standard deviation of the noise on the sum over the clip norm (what adding or removing one
            participant moves the sum by, at most). 0 is no privacy, infinity costs nothing.
        sample_rate: probability of one participant to be in the sum; 1 under NONE.
        count: releases, each with fresh noise and a fresh draw.
        sampling: the amplification that may be counted.

    Raises:
        ValueError: for a number out of range; NaN is none in range.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    count: int = 1
    sampling: Sampling = Sampling.NONE

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier = {self.noise_multiplier}: must be 0 or more")
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate = {self.sample_rate}: must be a probability above 0")
        if self.count < 0:
            raise ValueError(f"count = {self.count}: must be 0 or more releases")
        if self.sampling is Sampling.NONE and self.sample_rate != 1:
            raise ValueError(f"sample_rate = {self.sample_rate}: must be 1 where no sampling is counted")

    @property
    def is_free(self) -> bool:
        """Whether it costs nothing."""
        return self.count == 0 or math.isinf(self.noise_multiplier)
