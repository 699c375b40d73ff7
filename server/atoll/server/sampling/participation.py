"""Whom a bound on participation keeps from being drawn: how often, and how soon again, one may be in a sum.

Mechanisms that do not count on a random draw (``privacy.mechanisms``) take their sensitivity from these two numbers
(Choquette-Choo et al. 2023, "(k, b)-participation"), so the draw has to keep them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Participation:
    """The released sums of a run that one participant is in: how many, and the newest one's round."""

    times: int
    last_round: int


@dataclass(frozen=True, slots=True)
class ParticipationLimit:
    """The bound of a run.

    Attributes:
        most: sums that one participant may be in.
        separation: rounds from one to the next, at least: 1 allows every round.

    Raises:
        ValueError: for a number below 1.
    """

    most: int
    separation: int = 1

    def __post_init__(self) -> None:
        if min(self.most, self.separation) < 1:
            raise ValueError(f"most = {self.most}, separation = {self.separation}: must be 1 or more")

    def bars(self, known: Participation, round_number: int) -> bool:
        """Whether one with this past must not be drawn for the round."""
        return known.times >= self.most or round_number - known.last_round < self.separation

    def barred(self, known: Mapping[str, Participation], round_number: int) -> frozenset[str]:
        """Who must not be drawn for the round."""
        return frozenset(name for name, past in known.items() if self.bars(past, round_number))
