"""The releases that an account adds up."""

from __future__ import annotations

from dataclasses import dataclass

DATA_NAME_PATTERN = r"[A-Za-z0-9_.-]{1,64}"
"""Regular expression for the name of a data set, which is also the name of its ledger's file."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Releases of one kind, each with fresh noise and a fresh draw.

    Attributes:
        noise_multiplier: standard deviation of the noise over the sensitivity of the sum to one sample.
        sample_rate: probability that a sample is in a release, in (0, 1].
        count: number of releases.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    count: int = 1
