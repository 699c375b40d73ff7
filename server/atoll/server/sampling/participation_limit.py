"""The participation bound: how many sums a participant may be in, and how many rounds apart.

Mechanisms without amplification by sampling (``privacy.mechanisms``) take their sensitivity from these two numbers
(Choquette-Choo et al. 2023, "(k, b)-participation"), so the draw must enforce them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Participation:
    """The number of a run's released sums that include a participant, and the round of the newest."""

    times: int
    last_round: int


@dataclass(frozen=True, slots=True)
class ParticipationLimit:
    """The participation bound of a run.

    Attributes:
        most: largest number of sums that one participant may be in.
        separation: minimum number of rounds from one participation to the next; 1 allows every round.

    Raises:
        ValueError: for a number below 1.
    """

    most: int
    separation: int = 1

    def __post_init__(self) -> None:
        if min(self.most, self.separation) < 1:
            raise ValueError(f"most = {self.most}, separation = {self.separation}: must be 1 or more")

    def bars(self, known: Participation, round_number: int) -> bool:
        """Whether a participant with this past must not be drawn for the round."""
        return known.times >= self.most or round_number - known.last_round < self.separation

    def barred(self, known: Mapping[str, Participation], round_number: int) -> frozenset[str]:
        """The participants that must not be drawn for the round."""
        return frozenset(name for name, past in known.items() if self.bars(past, round_number))
