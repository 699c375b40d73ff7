"""One private run: its contract, and the state that its next release needs.

Everything here is a function of the contract and of a small state, which is stored when the run is submitted and
replaced in the transaction that charges a release (``stores.noise_states``). So a release that is repeated after a
crash is bit-identical, and a release that was charged can never be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll.server.aggregation.grid import Grid
from atoll.server.aggregation.next_model import Readable
from atoll.server.errors import CorruptDataError
from atoll.server.privacy.capacity import most_members
from atoll.server.privacy.clipping import AdaptiveClip
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.mechanisms import Mechanism, NoiseState, RoundNoise, derived, mechanism_named, new_secret
from atoll.server.privacy.mechanisms.interface import NOISE_BYTES
from atoll.server.privacy.noise import sigma_for
from atoll.server.privacy.report_shortfall import ReportShortfall
from atoll.server.privacy.scale import least_clip, private_grid, sensitivity
from atoll.wire.privacy_terms import PrivacyAdjacency, PrivacyMechanism, PrivacySampling, PrivacyTerms, PrivacyUnit

CLIPPED_BY_ITSELF = 1 - 2.0**-10
"""An update counts as clipped from this share of the clip norm on; participants clip exactly to the norm."""


@dataclass(frozen=True, slots=True)
class PrivateState:
    """Inputs of a release besides the sum.

    Attributes:
        clip: L2 norm that updates are clipped to.
        noise: the mechanism's state.
        shortfall: cumulative shortfall of the noised counts of reports (``report_shortfall``).
    """

    clip: float
    noise: NoiseState
    shortfall: float = 0.0

    @property
    def version(self) -> int:
        """Train rounds released before."""
        return self.noise.version


@dataclass(frozen=True, slots=True)
class Summed:
    """Inputs of a round's noise from its sum.

    Attributes:
        grid: the round's grid.
        elements: number of elements of the sum.
        binding: digest of the contributions, so that another set never gets the same noise.
        norms: L2 norm of each contribution before clipping; used only by adaptive clipping.
        reports: number of contributions; used only if its noised count is released.
    """

    grid: Grid
    elements: int
    binding: bytes
    norms: Sequence[float]
    reports: int = 0


class PrivateRun:
    """A run's contract with its current state; ``after_release`` gives the next state, ``to_text`` the stored form.

    ``epsilon`` is the joint cost of all planned rounds at the contract's delta.
    """

    def __init__(self, contract: Contract, epsilon: float, state: PrivateState) -> None:
        self.contract = contract
        self.epsilon = epsilon
        self.state = state
        self._mechanism = _mechanism_of(contract)

    @classmethod
    def begin(cls, contract: Contract, epsilon: float) -> PrivateRun:
        """A run before its first release, with a fresh secret."""
        noise = _mechanism_of(contract).begin(new_secret())
        return cls(contract, epsilon, PrivateState(contract.clip, noise))

    @classmethod
    def from_text(cls, text: str) -> PrivateRun:
        """Read the stored form that ``to_text`` writes.

        Raises:
            CorruptDataError: if it cannot be read.
        """
        try:
            body: Mapping[str, Any] = json.loads(text)
            state = PrivateState(
                float.fromhex(body["clip"]), NoiseState.from_json(body["noise"]), float.fromhex(body["shortfall"])
            )
            return cls(Contract.from_json(body["contract"]), float.fromhex(body["epsilon"]), state)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                "privacy.state",
                f"the stored state of a private run is damaged: {type(error).__name__}: {error}",
                "restore the database from its latest backup",
            ) from error

    def to_text(self) -> str:
        """The stored form, as JSON; it holds the secret."""
        return json.dumps(
            {
                "contract": self.contract.as_json(),
                "epsilon": self.epsilon.hex(),
                "clip": self.state.clip.hex(),
                "noise": self.state.noise.to_json(),
                "shortfall": self.state.shortfall.hex(),
            }
        )

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the noise blobs that are kept from round to round."""
        return self._mechanism.needs

    def kept_bytes(self, elements: int) -> int:
        """Maximum number of values of earlier noise kept during a round, for a sum of ``elements`` elements."""
        return NOISE_BYTES * elements * self._mechanism.most_kept_values

    def grid(self, total_weight: int, max_abs: float) -> Grid:
        """The grid of the next round, for a total weight of at most ``total_weight``; the same for all rounds.

        Raises:
            GridError: if the sum has no room for the noise.
        """
        contract = self.contract
        planned = most_members(contract.planned_cohort) * contract.weight_bound
        grid = private_grid(max(total_weight, planned), max_abs, self.state.clip, self._noise_weight)
        return replace(grid, clip=0.0) if self.contract.protects_rows else grid

    @property
    def noise_on_sum(self) -> float:
        """Standard deviation of the noise on each element of the next sum, in the elements' units."""
        return self._noise_weight * self.state.clip

    @property
    def _noise_weight(self) -> float:
        """Standard deviation of the noise on a sum, in clip norms."""
        return self.contract.noise_multiplier * self.contract.weight_bound

    def rehearse(self, elements: int, max_abs: float) -> None:
        """Rehearse the first release with an empty sum, to find noise that cannot be drawn before a round opens.

        Raises:
            GridError: if the sum has no room for the noise, or no grid is fine enough for it.
            ValueError, OverflowError: if noise of that size cannot be drawn.
        """
        nothing = Summed(self.grid(0, max_abs), elements, b"", ())
        self.noise(nothing, {}).block(0, 1)
        self.after_release(nothing)

    def noise(self, summed: Summed, history: Mapping[str, Readable]) -> RoundNoise:
        """The noise of the next release."""
        version = self.state.version
        return self._mechanism.round(self.state.noise, version, summed.binding, self._sigma(summed), history)

    @property
    def terms(self) -> PrivacyTerms:
        """The privacy terms that members of the next round receive."""
        contract = self.contract
        return PrivacyTerms(
            mechanism=PrivacyMechanism(contract.mechanism),
            noise_multiplier=contract.accounted_noise,  # the values that a participant charges to its own ledger
            clip_norm=self.state.clip,
            epsilon=self.epsilon,
            delta=contract.delta,
            adjacency=PrivacyAdjacency.ADD_REMOVE if contract.protects_rows else PrivacyAdjacency(contract.adjacency),
            sampling=PrivacySampling(contract.sampling.value),
            sample_rate=contract.sample_rate,
            population=contract.population,
            unit=PrivacyUnit(contract.adjacency.unit),
        )

    def after_release(self, summed: Summed) -> PrivateRun:
        """The run after this release, with a new secret."""
        before, version = self.state, self.state.version
        noise = self._mechanism.advance(before.noise, version, summed.binding, self._sigma(summed), new_secret())
        after = PrivateState(self._next_clip(summed), noise, self._next_shortfall(summed))
        return PrivateRun(self.contract, self.epsilon, after)

    @property
    def is_short(self) -> bool:
        """Whether the noised counts show that less than half of the planned members report."""
        detector = self._report_shortfall
        return detector is not None and self.state.shortfall > detector.limit

    def forgiven(self) -> PrivateRun:
        """The run with its shortfall reset to 0."""
        return PrivateRun(self.contract, self.epsilon, replace(self.state, shortfall=0.0))

    @property
    def _report_shortfall(self) -> ReportShortfall | None:
        noise = self.contract.report_noise
        return None if noise is None else ReportShortfall(self.contract.planned_cohort, noise)

    def _next_shortfall(self, summed: Summed) -> float:
        """The shortfall after a noised count of reports, whose cost the release includes (``Contract.cost``)."""
        detector = self._report_shortfall
        if detector is None:
            return 0.0
        key = derived(self.state.noise.secret, "reports", self.state.version, summed.binding)
        return detector.next_shortfall(self.state.shortfall, detector.noised_count(summed.reports, key))

    def _next_clip(self, summed: Summed) -> float:
        """The norm after a noised count of the updates within it; the release's cost covers it (``Contract.cost``)."""
        clip, settings = self.state.clip, self.contract.adaptive
        if settings is None:
            return clip
        expected = self.contract.planned_cohort
        moving = AdaptiveClip(settings.quantile, settings.learning_rate, expected, settings.count_noise)
        key = derived(self.state.noise.secret, "count", self.state.version, summed.binding)
        within = sum(norm < clip * CLIPPED_BY_ITSELF for norm in summed.norms)
        moved = moving.next_clip(clip, moving.noised_count(within, len(summed.norms), key))
        return max(moved, least_clip(summed.grid, self._noise_weight))

    def _sigma(self, summed: Summed) -> float:
        contract = self.contract
        moved = contract.weight_bound * sensitivity(summed.grid, summed.elements, self.state.clip)
        return sigma_for(contract.noise_multiplier * (moved + self._mechanism.allowance(summed.elements)))


def _mechanism_of(contract: Contract) -> Mechanism:
    return mechanism_named(contract.mechanism, contract.bands, contract.strategy, contract.rounds)
