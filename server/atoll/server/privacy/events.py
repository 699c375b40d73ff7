"""The terms of the privacy account: adjacency, sampling, and the event that a release is charged as."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Adjacency(StrEnum):
    """The neighbour relation. The unit is one participant, with everything that it sends in all rounds, or one row.

    ADD_REMOVE: the participant's contributions are present, or replaced by zero. Under Poisson sampling this is
        equivalent to its membership in the population, since the sum is divided by a fixed number. If availability
        decides who is drawn, the draw itself is not protected, only the data that drawn participants sent.
    REPLACE_ONE: the participant's contributions are exchanged for another participant's, which moves the sum by up to
        twice the clip norm. No job promises it today. Ledgers and participants' policies name the adjacency, so that
        charges under one are never added to a promise under another.
    ADD_REMOVE_ROW: one row of one participant's table is present or absent. Only statistics promise it, since their
        answers are sums over rows. Participants are trusted to sum as the SDK does; one that does not endangers only
        its own rows.
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"
    ADD_REMOVE_ROW = "add_remove_row"

    @property
    def unit(self) -> str:
        """The unit of privacy, in which neighbours differ."""
        return "row" if self is Adjacency.ADD_REMOVE_ROW else "participant"


class Sampling(StrEnum):
    """The amplification by sampling that an event may claim.

    POISSON: each participant is drawn independently with probability `sample_rate`.
    NONE: no amplification.
    """

    POISSON = "poisson"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Event:
    """The cost of ``count`` releases.

    Attributes:
        noise_multiplier: standard deviation of the noise on the sum, divided by the clip norm, which bounds how far
            adding or removing one participant moves the sum. 0 gives no privacy; infinity costs nothing.
        sample_rate: probability that one participant is in the sum; 1 under NONE.
        count: releases, each with fresh noise and a fresh draw.
        sampling: the amplification that the event claims.

    Raises:
        ValueError: for a number out of range, or NaN.
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
        """Whether the event costs nothing."""
        return self.count == 0 or math.isinf(self.noise_multiplier)
