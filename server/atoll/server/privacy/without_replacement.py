"""Rényi divergence of a Gaussian release over a uniformly random subset of fixed size, for replace-one adjacency.

Wang, Balle, Kasiviswanathan 2019, "Subsampled Rényi Differential Privacy and Analytical Moments Accountant"
(arXiv:1808.00087): theorem 9, with the smaller of its terms and those of theorem 27. Opacus has Poisson sampling only.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

MAX_ORDER = 256


def subsampled_divergence(rate: float, sigma: float, order: int) -> float:
    """Upper bound on the Rényi divergence of one release.

    Args:
        rate: size of the subset over the number drawn from, above 0 up to 1.
        sigma: standard deviation of the noise over what replacing one participant moves the sum by, which is twice the
            clip norm.
        order: of the divergence, 2 to ``MAX_ORDER``.
    """
    whole = order / (2 * sigma**2)
    if rate == 1.0:
        return whole
    terms = [0.0]  # of j = 0: 1
    terms += [_log_term(sigma, j) + math.log(math.comb(order, j)) + j * math.log(rate) for j in range(2, order + 1)]
    largest = max(terms)
    moment = largest + math.log(math.fsum(math.exp(term - largest) for term in terms))
    return min(whole, moment / (order - 1))


@lru_cache(maxsize=8 * MAX_ORDER)
def _log_term(sigma: float, j: int) -> float:
    """What stands beside rate**j and the binomial coefficient, as a logarithm.

    With (i - 1) eps(i) = i (i - 1) / (2 sigma**2). As eps(infinity) is infinite, theorem 9 has 4 (e**eps(2) - 1) or
    2 e**eps(2) for j = 2, and 2 e**((j - 1) eps(j)) above; theorem 27 has 4 sqrt(B(2 floor(j/2)) B(2 ceil(j/2))).
    """
    even_below, even_above = j // 2 * 2, -(-j // 2) * 2
    moments = _log_moments(sigma)
    theorem_27 = math.log(4.0) + (moments[even_below] + moments[even_above]) / 2
    theorem_9 = math.log(2.0) + j * (j - 1) / (2 * sigma**2)
    return min(theorem_27, theorem_9)


@lru_cache(maxsize=8)
def _log_moments(sigma: float) -> dict[int, float]:
    """Logarithms of B(l) = E[(p/q - 1)**l] for even l.

    That is the sum over i of (-1)**i choose(l, i) e**(i (i - 1) / (2 sigma**2)). The terms cancel to about sigma**-l of
    the largest, so they are summed with as many digits as that takes.
    """
    found = {}
    with localcontext() as context:
        context.prec = 150 + math.ceil(MAX_ORDER * max(0.0, math.log10(sigma)))
        context.Emax, context.Emin = 10**15, -(10**15)
        step = 1 / (2 * Decimal(sigma) ** 2)
        powers = [(step * (i * (i - 1))).exp() for i in range(MAX_ORDER + 1)]
        for order in range(2, MAX_ORDER + 1, 2):
            signed = (math.comb(order, i) * (-power if i % 2 else power) for i, power in enumerate(powers[: order + 1]))
            total = sum(signed, Decimal(0))
            exponent = total.adjusted()
            found[order] = math.log(total.scaleb(-exponent)) + exponent * math.log(10.0)
    return found
