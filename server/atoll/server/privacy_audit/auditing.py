"""An audit: sends canaries through a run's releases, guesses which took part, and compares the bound with the claim.

Canaries are split into groups, each in a separate run. Runs on disjoint participants are together as private as one of
them, so the guesses on all groups are evidence about one run.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from atoll.server.errors import InvalidRequestError
from atoll.server.privacy.accounting import epsilon
from atoll.server.privacy.contract import Contract
from atoll.server.privacy.events import Sampling
from atoll.server.privacy_audit.bounds import CONFIDENCE, Guesses, epsilon_at_least, p_value
from atoll.server.privacy_audit.canaries import OVERSIZE, Canaries, Directions
from atoll.server.privacy_audit.evidence import Attack
from atoll.server.privacy_audit.guessing import Reach, best_reach, strongest
from atoll.server.privacy_audit.noise_scale import NoiseFound, noise_found
from atoll.server.privacy_audit.rehearsal import Rehearsal, Safeguards
from atoll.server.sampling import DrawRequest, Eligible, sampler_named
from atoll.text.figures import bound, figure
from atoll.wire.layout import Dtype, Layout, TensorSpec

Doubles = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]
"""Called with the number of finished groups and the total number of groups."""

GROUP = 4096
MIN_CANARIES = 64
MAX_CANARIES = 1 << 17
LITTLE_NOISE = 0.1
"""Share of the contract's noise at which the audit must fail."""
MARGIN = 1.05
"""A run with almost no noise must be expected to show at least this multiple of the claimed epsilon."""
_KEPT = 1 << 22
"""Number of noise values to test, at least ``MIN_CANARIES`` in each round."""
_SMALLER_DELTAS = (1.0, 0.1, 0.01, 0.001)


@dataclass(frozen=True, slots=True)
class Design:
    """The parameters of an audit, fixed before the canaries' coins are drawn.

    Attributes:
        contract: the audited contract.
        canaries: number of canaries in all groups.
        delta: delta at which the claim is tested; smaller than the contract's if that one leaves nothing to detect.
        claimed: the contract's epsilon at this delta, by its accountant.
        shows: the bound expected of a run with almost no noise, which proves that the audit can fail.
        reaches: the attacks: for sound releases, for missing noise, for missing clipping.
        confidence: confidence of the bound.
    """

    contract: Contract
    canaries: int
    delta: float
    claimed: float
    shows: float
    reaches: tuple[Reach, ...]
    confidence: float


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an audit.

    Attributes:
        epsilon_at_least: the bound, with the design's confidence.
        guesses: the guesses that gave the bound.
        noise: the measured noise of the releases.
    """

    design: Design
    safeguards: Safeguards
    directions: Directions
    epsilon_at_least: float
    guesses: Guesses
    noise: NoiseFound

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted; wrong with probability 1 - confidence for the guesses, 1e-6 for the noise."""
        return self.epsilon_at_least > self.design.claimed or self.noise.refuted


def design(
    contract: Contract, canaries: int | None = None, delta: float | None = None, confidence: float = CONFIDENCE
) -> Design:
    """Choose canaries, delta and guesses such that the audit would fail without noise.

    With adaptive clipping, only the cost of the updates at the first norm is audited: releases and claim leave out the
    noised count.

    Args:
        contract: the contract to audit.
        canaries: a power of two; None for the fewest that suffice.
        delta: delta at which to test the claim; None for the contract's, or down to a thousandth of it.
        confidence: confidence of the bound.

    Raises:
        InvalidRequestError: if no run could refute the claim.
    """
    contract = replace(contract, adaptive=None, report_noise=None)
    attack, rng = Attack(contract), np.random.default_rng()
    suspicions = (attack, replace(attack, noise_share=LITTLE_NOISE), replace(attack, unit=OVERSIZE))
    each = 1.0 - (1.0 - confidence) / len(suspicions)
    for at in [contract.delta * share for share in _SMALLER_DELTAS] if delta is None else [delta]:
        claimed = epsilon(contract.costs(contract.rounds), at, contract.accountant)
        silent = best_reach(suspicions[1], canaries or GROUP, at, each, rng)
        for count in _powers(canaries):
            if p_value(silent.expected(count), MARGIN * claimed, at) < 1.0 - each:
                shows = epsilon_at_least(silent.expected(count), at, each)
                reaches = tuple(best_reach(one, count, at, each, rng) for one in suspicions)
                return Design(contract, count, at, claimed, shows, reaches, confidence)
    raise _cannot_fail(contract, canaries, delta)


def audit(
    plan: Design,
    directions: Directions = "dirac",
    safeguards: Safeguards | None = None,
    progress: Progress | None = None,
) -> Finding:
    """Run an audit: ``canaries`` / ``GROUP`` runs of all rounds, with every step from fold to release.

    Args:
        plan: the audit's parameters.
        directions: the canaries' directions.
        safeguards: which safeguards are on.
        progress: called after each group.
    """
    on = safeguards or Safeguards()
    size = min(GROUP, plan.canaries)
    groups, attacks = plan.canaries // size, [reach.attack for reach in plan.reaches]
    scores = np.empty((len(attacks), groups, size))
    coins = np.random.default_rng().random((groups, size)) < 0.5
    noise: npt.NDArray[np.float64] = np.empty((0, 0))
    for number in range(groups):
        if progress:
            progress(number, groups)
        canaries = Canaries(size, plan.contract.clip, directions)
        scores[:, number], noise = _run(attacks, canaries, coins[number], on)
    guesses = [reach.guess(found.ravel(), coins.ravel()) for reach, found in zip(plan.reaches, scores, strict=True)]
    best, bound = strongest(guesses, plan.delta, plan.confidence)
    return Finding(plan, on, directions, bound, best, noise_found(plan.contract, noise))


def _run(
    attacks: Sequence[Attack], canaries: Canaries, coins: Coins, safeguards: Safeguards
) -> tuple[Doubles, Doubles]:
    """The canaries' scores by each attack after one run, (attacks, canaries), and its noise, (rounds, some of them)."""
    contract = attacks[0].contract
    layout = Layout((TensorSpec("canaries", (canaries.size,), Dtype.FLOAT32),))
    max_abs = 2.0 ** math.ceil(math.log2(OVERSIZE * contract.clip))
    model = np.zeros(canaries.size, np.float32)
    run = Rehearsal(contract, layout, model, most=canaries.count, max_abs=max_abs, safeguards=safeguards)
    draw, scores = _Draw(attacks[0], canaries.count), np.zeros((len(attacks), canaries.count))
    noise = np.empty((contract.rounds, min(canaries.count, max(MIN_CANARIES, _KEPT // contract.rounds))))
    for version in range(contract.rounds):
        drawn, before = draw.members(version), run.model
        sending = [number for number in drawn if coins[number]]
        run.release(map(canaries.update, sending))
        sums = (run.model.astype(np.float64) - before) * (contract.divisor_weight / contract.weight_bound)
        found = canaries.found_in(sums)
        scores += [attack.evidence(version, found) for attack in attacks]
        found[sending] -= 1.0
        noise[version] = found[: noise.shape[1]]
    return scores, noise


class _Draw:
    """Draws the members of each round: by the run's sampler, or the worst case under the participation bounds."""

    def __init__(self, attack: Attack, count: int) -> None:
        self._attack, self._secret = attack, secrets.randbits(63)
        self._everyone = tuple(Eligible(f"p{number:012}") for number in range(count))

    def members(self, version: int) -> list[int]:
        attack, rate = self._attack, self._attack.contract.sample_rate
        if attack.contract.sampling is Sampling.NONE:
            return list(range(len(self._everyone))) if version in attack.schedule else []
        request = DrawRequest(self._everyone, int(rate * len(self._everyone)), self._secret, version, rate=rate)
        return [int(participant[1:]) for participant, _ in sampler_named("poisson").draw(request).members]


def _powers(canaries: int | None) -> list[int]:
    if canaries is None:
        return [1 << bits for bits in range(12, MAX_CANARIES.bit_length())]
    if canaries & (canaries - 1) or not MIN_CANARIES <= canaries <= MAX_CANARIES:
        raise InvalidRequestError(
            "audit.canaries", f"{canaries} canaries: allowed are powers of two from {MIN_CANARIES} to {MAX_CANARIES}"
        )
    return [canaries]


def _cannot_fail(contract: Contract, canaries: int | None, delta: float | None) -> InvalidRequestError:
    given = contract.delta if delta is None else delta
    claimed = epsilon(contract.costs(contract.rounds), given, contract.accountant)
    many = f"{canaries} canaries" if canaries else f"{MAX_CANARIES} canaries, the most there are,"
    return InvalidRequestError(
        "audit.design",
        f"epsilon {bound(claimed)} at delta {figure(given)} is claimed, and {many} could not refute it even were there "
        "no noise",
        "more canaries, or another delta, may; guesses on n canaries show log(n / 4) at most"
        if canaries or delta
        else "audit a contract with a smaller epsilon: the same noise over fewer rounds, or more noise",
    )
