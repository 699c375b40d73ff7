"""The discrete Gaussian by Canonne, Kamath, Steinke 2020, Algorithms 1 to 3, in Python integers: the oracle.

Nothing is rounded: probabilities are fractions of integers, and every decision is the comparison of a uniform integer.
"""

from __future__ import annotations

import random
from fractions import Fraction


class Exact:
    """Samples of N_Z(0, sigma**2), one after another."""

    def __init__(self, sigma: float, seed: int) -> None:
        square = Fraction(sigma) ** 2
        self._numerator, self._denominator = square.numerator, square.denominator
        self._scale = int(sigma) + 1
        self._random = random.Random(seed)

    def sample(self) -> int:
        """Algorithm 3: a discrete Laplace of scale t = floor(sigma) + 1, accepted or not."""
        n, d, t = self._numerator, self._denominator, self._scale
        while True:
            y = self._laplace()
            difference = abs(y) * t * d - n  # (|y| - sigma**2 / t) times t d
            if self._bernoulli_exp(difference * difference, 2 * n * d * t * t):
                return y

    def _laplace(self) -> int:
        """Algorithm 2, with s = 1 and t the scale."""
        t = self._scale
        while True:
            u = self._random.randrange(t)
            if not self._bernoulli_exp(u, t):
                continue
            v = 0
            while self._bernoulli_exp(1, 1):
                v += 1
            magnitude = u + t * v
            minus = self._random.randrange(2)
            if not (minus and magnitude == 0):
                return -magnitude if minus else magnitude

    def _bernoulli_exp(self, n: int, d: int) -> bool:
        """Algorithm 1: true with probability exp(-n / d)."""
        while n > d:
            if not self._at_most_one(1, 1):
                return False
            n -= d
        return self._at_most_one(n, d)

    def _at_most_one(self, n: int, d: int) -> bool:
        """Algorithm 1 for n / d in [0, 1]."""
        k = 1
        while self._random.randrange(d * k) < n:
            k += 1
        return k % 2 == 1
