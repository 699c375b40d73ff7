"""Chooses the number of canaries to guess, which must happen before the coins are drawn for the bound to hold.

With noise as claimed, only the surest scores are worth a guess; with almost none, nearly all are; and without clipping,
canaries are longer than assumed. So there are three attacks, each with a third of the allowed error. One audit is thus
strong for sound releases, and still fails if noise or clipping is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from atoll.server.privacy.events import Sampling
from atoll.server.privacy_audit.bounds import Guesses, epsilon_at_least
from atoll.server.privacy_audit.evidence import Attack

Doubles = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
_IMAGINED = 16384
_WORLDS = 4
_SHARES = np.geomspace(2**-9, 1.0, 37)
_ROUGHLY = 8
"""Number of halvings, with which reaches are compared to 1%."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The number of canaries to guess, which are those with an attack's surest scores.

    Attributes:
        attack: the attack that gives the scores.
        share: guesses as a share of all canaries.
        right: share of the guesses that is expected to be right.
    """

    attack: Attack
    share: float
    right: float

    def guess(self, scores: Doubles, coins: Coins) -> Guesses:
        """Guess by the scores and count the right guesses; scores and coins have shape (canaries,)."""
        made = int(self.share * scores.size)
        surest = np.argsort(-np.abs(scores), kind="stable")[:made]
        return Guesses(scores.size, made, int(np.count_nonzero((scores[surest] > 0) == coins[surest])))

    def expected(self, canaries: int) -> Guesses:
        """The expected guesses on this many canaries."""
        made = int(self.share * canaries)
        return Guesses(canaries, made, int(self.right * made))


def best_reach(attack: Attack, canaries: int, delta: float, confidence: float, rng: np.random.Generator) -> Reach:
    """The reach with the highest bound in simulated runs; real releases are not used.

    Args:
        attack: the attack, in runs with the noise and clipping that it assumes.
        canaries: number of canaries.
        delta: delta at which the claim is tested; the more canaries, the more right guesses are needed to outweigh it.
        confidence: of the bound.
        rng: random numbers for the simulated runs.
    """
    found = np.mean([_right(*_imagine(attack, rng)) for _ in range(_WORLDS)], axis=0)
    right = np.minimum(found / _SHARES, 1.0)
    surely = right - 2 * np.sqrt(right * (1 - right) / (_SHARES * _IMAGINED * _WORLDS))  # otherwise chance would decide
    cautious = [Reach(attack, float(share), float(part)) for share, part in zip(_SHARES, surely, strict=True)]
    bounds = [epsilon_at_least(one.expected(canaries), delta, confidence, _ROUGHLY) for one in cautious]
    best = int(np.argmax(bounds))
    return replace(cautious[best], right=float(right[best]))


def strongest(guesses: Sequence[Guesses], delta: float, confidence: float) -> tuple[Guesses, float]:
    """The guesses with the highest bound, and that bound; each attack gets its share of the error."""
    each = 1.0 - (1.0 - confidence) / len(guesses)
    return max(((one, epsilon_at_least(one, delta, each)) for one in guesses), key=lambda pair: pair[1])


def _right(scores: Doubles, coins: Coins) -> Doubles:
    """Number of right guesses for each reach, as a share of all canaries."""
    surest = np.argsort(-np.abs(scores), kind="stable")
    right = np.concatenate([[0], np.cumsum((scores[surest] > 0) == coins[surest])])
    found: Doubles = right[(_SHARES * scores.size).astype(np.int64)] / scores.size
    return found


def _imagine(attack: Attack, rng: np.random.Generator) -> tuple[Doubles, Coins]:
    """Simulated scores and coins of a run with independent canaries and Gaussian noise."""
    coins = rng.random(_IMAGINED) < 0.5
    contract = attack.contract
    if contract.sampling is Sampling.NONE:
        apart = attack.information
        return apart * (coins - 0.5) + np.sqrt(apart) * rng.standard_normal(_IMAGINED), coins
    scores = np.zeros(_IMAGINED)
    for version in range(contract.rounds):
        drawn = rng.random(_IMAGINED) < contract.sample_rate
        found = 1.0 * (coins & drawn) + attack.noise * rng.standard_normal(_IMAGINED)
        scores += attack.evidence(version, found * attack.unit)
    return scores, coins
