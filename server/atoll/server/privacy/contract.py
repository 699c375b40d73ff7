"""A run's promise to its participants: derived from the job, frozen, and stored with the run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import TypeAdapter

from atoll.accounting import Accountant
from atoll.server.privacy.accounting import epsilon
from atoll.server.privacy.events import Adjacency, Event, Sampling
from atoll.server.privacy.mechanisms.sensitivity import (
    Squares,
    banded_squares,
    blt_squares,
    gaussian_squares,
    tree_squares,
)
from atoll.server.privacy.mechanisms.strategy import Strategy

Mechanism = Literal["gaussian", "blt", "banded", "tree"]


@dataclass(frozen=True, slots=True)
class AdaptiveClipping:
    """A clip norm that follows a quantile of the updates' norms (Andrew et al. 2021, algorithm 1).

    Attributes:
        initial: norm of the first round.
        quantile: share of the updates that should be within the norm.
        learning_rate: eta of the geometric update.
        count_noise: sigma_b: standard deviation of the noise on the count, in participants.
    """

    initial: float
    quantile: float
    learning_rate: float
    count_noise: float


@dataclass(frozen=True, slots=True)
class Contract:
    """A run's privacy promise, with all parameters that determine its noise and charges.

    Attributes:
        population: the population whose budget the run spends.
        mechanism: how the noise of different rounds is correlated.
        adjacency: which neighbouring data sets are protected.
        accountant: the accountant that composes the run's own cost.
        sampling: the amplification by sampling that is accounted for.
        sample_rate: probability that one participant is in a round's sum; 1 without amplification.
        epsilon: target over all rounds; None if the noise was given instead.
        delta: the promise's delta.
        noise_multiplier: standard deviation of the noise on the sum of the updates (of each independent part of it, for
            correlated noise), divided by ``weight_bound`` clip norms. With adaptive clipping it is z_delta of Andrew et
            al. 2021, section 3.1, which is larger than the multiplier that the whole release is accounted with.
        clip: L2 norm to which one update is clipped; with adaptive clipping, in the first round. If rows are protected,
            the largest norm of one row.
        adaptive: how the norm moves; None for a fixed one.
        weight_bound: largest weight of one participant, in weight units (examples, or 1): one participant moves the sum
            of a round by at most that many clip norms, in L2.
        divisor_weight: divisor of every sum, in weight units, regardless of how many reported.
        rounds: train rounds planned.
        max_participations: maximum number of rounds that one participant may be in; None with amplification by
            sampling.
        min_separation: minimum number of rounds from one participation to the next; 1 is no constraint.
        bands: bands of the banded mechanism; 1 for the others.
        strategy: strategy of the BLT mechanism; None for the others.
        report_noise: standard deviation of the noise on each round's number of reports, in participants; None if that
            number is not released.
    """

    population: str
    mechanism: Mechanism
    adjacency: Adjacency
    accountant: Accountant
    sampling: Sampling
    sample_rate: float
    epsilon: float | None
    delta: float
    noise_multiplier: float
    clip: float
    adaptive: AdaptiveClipping | None
    weight_bound: int
    divisor_weight: int
    rounds: int
    max_participations: int | None = None
    min_separation: int = 1
    bands: int = 1
    strategy: Strategy | None = None
    report_noise: float | None = None

    @property
    def protects_rows(self) -> bool:
        """Whether the unit of privacy is a row of a participant's table. Participants' updates are then not clipped."""
        return self.adjacency is Adjacency.ADD_REMOVE_ROW

    @property
    def count_noise(self) -> float | None:
        """Standard deviation of the noise on adaptive clipping's count, in participants."""
        return None if self.adaptive is None else self.adaptive.count_noise

    @property
    def accounted_noise(self) -> float:
        """The noise multiplier of a whole release, updates and counts: z of Andrew et al. 2021, section 3.1.

        Adaptive clipping counts in terms of +-1/2, so one participant moves the sum by one clip norm, the count by 1/2,
        and the number of reports by 1. Together they are one Gaussian release with z**-2 = z_delta**-2 + (2
        sigma_b)**-2 + report_noise**-2.
        """
        if self.adaptive is None and self.report_noise is None:
            return self.noise_multiplier
        of_norms = 0.0 if self.adaptive is None else 0.5 / self.adaptive.count_noise
        of_reports = 0.0 if self.report_noise is None else 1.0 / self.report_noise
        return 1.0 / math.hypot(1.0 / self.noise_multiplier, of_norms, of_reports)

    @property
    def planned_cohort(self) -> int:
        """The number of reports by which every sum is divided."""
        return max(1, self.divisor_weight // self.weight_bound)

    @property
    def participations(self) -> int:
        """Maximum number of rounds that one participant may be in: the cap, or fewer under the separation."""
        room = -(-self.rounds // self.min_separation)
        return room if self.max_participations is None else min(self.max_participations, room)

    def cost(self, version: int) -> Event | None:
        """The ledger entry for releasing train round ``version`` (from 0); None if the release costs nothing.

        Without amplification a run costs as much as the rounds of one participant in the worst case. A round that does
        not make the worst case worse costs nothing.

        Raises:
            ValueError: for a round beyond the planned rounds, which the contract does not cover.
        """
        if not 0 <= version < self.rounds:
            raise ValueError(f"version = {version}: the contract is for {self.rounds} rounds, from 0")
        if self.sampling is not Sampling.NONE:
            return Event(self.accounted_noise, self.sample_rate, 1, self.sampling)
        squares = self._squares()
        added = float(squares[version] - (squares[version - 1] if version else 0.0))
        return Event(self.accounted_noise / math.sqrt(added)) if added > 0 else None

    def costs(self, releases: int) -> tuple[Event, ...]:
        """The joint cost of the first ``releases`` rounds, merged into the fewest events."""
        if releases == 0:
            return ()
        if self.sampling is not Sampling.NONE:
            return (Event(self.accounted_noise, self.sample_rate, releases, self.sampling),)
        return (Event(self.accounted_noise / math.sqrt(float(self._squares()[releases - 1]))),)

    def epsilon_after(self, releases: int) -> float:
        """Epsilon of the first ``releases`` rounds, at the contract's delta and by its accountant.

        May take seconds (``accounting.epsilon``).
        """
        return epsilon(self.costs(releases), self.delta, self.accountant)

    def _squares(self) -> Squares:
        """Squared sensitivity of the first 1, 2, ... rounds, in units of one round's."""
        most = self.max_participations or self.rounds
        return squared_sensitivity(self.mechanism, self.bands, self.rounds, self.min_separation, most, self.strategy)

    def as_json(self) -> dict[str, Any]:
        """The contract as a JSON object, for ``from_json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: object) -> Contract:
        """Read a contract from the result of ``as_json``.

        Raises:
            pydantic.ValidationError: if it is not a contract.
        """
        return _ADAPTER.validate_python(found)


@lru_cache(maxsize=16)
def squared_sensitivity(
    mechanism: Mechanism,
    bands: int,
    rounds: int,
    min_separation: int,
    max_participations: int,
    strategy: Strategy | None = None,
) -> Squares:
    """Squared sensitivity of the first 1, 2, ... ``rounds`` rounds to one participant, in squared clip norms.

    Raises:
        ValueError: for "blt" without a strategy.
    """
    match mechanism:
        case "gaussian":
            return gaussian_squares(rounds, min_separation, max_participations)
        case "tree":
            return tree_squares(rounds, min_separation, max_participations)
        case "banded":
            return banded_squares(bands, rounds, min_separation, max_participations)
        case "blt":
            if strategy is None:
                raise ValueError('mechanism "blt" has no strategy')
            return blt_squares(strategy, rounds, min_separation, max_participations)


_ADAPTER = TypeAdapter(Contract)
