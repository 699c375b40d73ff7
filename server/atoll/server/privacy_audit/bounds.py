"""A lower bound on epsilon from correct guesses about one run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846).

Each of m canaries is in or out of the training data by a fair coin. The attacker sees the releases, guesses some of the
coins and abstains from the others. If the training is (epsilon, delta)-DP, a guess is right with probability at most q
= e^epsilon / (1 + e^epsilon), so many right guesses are evidence against it. The number of guesses must be chosen
before the coins are known; which canaries are guessed may depend on all releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
_HALVINGS = 50
_NEAR = 64


@dataclass(frozen=True, slots=True)
class Guesses:
    """The outcome of guessing.

    Attributes:
        canaries: m, each in or out by its own fair coin.
        made: r, the number of guesses; the attacker abstained from the others.
        right: v, the number of right guesses.

    Raises:
        ValueError: unless 0 <= right <= made <= canaries and canaries > 0.
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries or self.canaries < 1:
            raise ValueError(f"{self.right} right of {self.made} guesses on {self.canaries} canaries: impossible")


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of this many right guesses under (epsilon, delta)-DP: Theorem 5.2.

    ``P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i`` with B binomial(r, q), over i from 1 to m. The maximum is
    among the first v, since a higher i divides the same probability by more.

    Raises:
        ValueError: for a negative epsilon or a delta that is not a probability.
    """
    from scipy.stats import binom  # noqa: PLC0415  # half a second that only audits need

    _check_delta(delta)
    if not epsilon >= 0:
        raise ValueError(f"epsilon = {epsilon}: must be 0 or more")
    made, right = guesses.made, guesses.right
    q = 1.0 / (1.0 + math.exp(-epsilon))
    chance = float(binom.sf(right - 1, made, q))
    if delta and right:
        steepest = _steepest(right, min(right, _NEAR + 8 * math.isqrt(made)), made, q)
        chance += 2.0 * guesses.canaries * delta * steepest
    return min(1.0, chance)


def _steepest(right: int, steps: int, made: int, q: float) -> float:
    """The largest ``P[v > B >= v - i] / i``: among the first ``steps`` or, if it may be beyond, all."""
    from scipy.stats import binom  # noqa: PLC0415  # half a second that only audits need

    below = np.cumsum(binom.pmf(np.arange(right - 1, right - 1 - steps, -1), made, q))
    found = float(np.max(below / np.arange(1, steps + 1)))
    return found if steps == right or found * steps >= 1 else _steepest(right, right, made, q)


def epsilon_at_least(
    guesses: Guesses, delta: float, confidence: float = CONFIDENCE, halvings: int = _HALVINGS
) -> float:
    """Lower bound on epsilon at this delta, wrong with probability at most 1 - ``confidence``.

    The p-value grows with epsilon while it is below 1/2, so bisection finds the crossing; with fewer ``halvings`` the
    bound is lower.

    Raises:
        ValueError: for a delta or confidence out of range.
    """
    _check_delta(delta)
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: must be above 0.5 and below 1")
    limit = 1.0 - confidence
    if p_value(guesses, 0.0, delta) >= limit:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(guesses, high, delta) < limit:
        low, high = high, 2.0 * high
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(guesses, middle, delta) < limit else (low, middle)
    return low


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta = {delta}: must be a probability below 1")
