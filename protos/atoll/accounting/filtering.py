"""A privacy filter: what releases cost that are chosen one after another, each after the results of those before.

An account of releases that were fixed beforehand says nothing of such a choice, nor does the smaller one of two
accounts. Of a limit (epsilon, delta), half of delta is kept for each of two cases, so that by the union bound the whole
is (epsilon, delta)-private whoever chooses:

- all releases are of one kind: without sampling, or with the noise and rate of the first. Only their number, or the sum
  of their precisions, is chosen, and the limit bounds it: fixed beforehand (a Gaussian filter is exact: Smith and
  Thakurta 2022). ``prv`` adds up, if nothing else is
  asked for.
- there are several kinds: the Rényi divergence of one order, which the first kind and the limit fix before anything is
  released (Feldman and Zrnic 2021, theorem 3.1). Adding up at all orders and taking the best, as an account of fixed
  releases may, would be a choice after the fact.

Filters that add up whole privacy losses are not valid in general (Hod et al. 2026, "Privacy Filters are Captured by
Residues").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atoll.accounting.composing import answered_by, epsilon
from atoll.accounting.renyi import ORDERS, Accountant, Curve, divergences, together
from atoll.accounting.steps import Steps


def filtered(
    first: Steps, paid: Sequence[Steps], limit: float | None, delta: float, accountant: Accountant = "prv"
) -> tuple[float, Accountant]:
    """The least epsilon of a limit, at ``delta``, that has room for all releases, and what has added them up.

    Args:
        first: the kind of the first release.
        paid: all of them; those without sampling may be one.
        limit: epsilon of the limit, which the order is chosen for; without one (None or infinite) the order is the one
            that is best so far.
        delta: of the limit.
        accountant: of releases of one kind.
    """
    costly = [one for one in paid if one.count and not math.isinf(one.noise_multiplier)]
    if any(one.noise_multiplier == 0 for one in costly):
        return math.inf, "prv"
    if len({one.sample_rate < 1 and (one.noise_multiplier, one.sample_rate) for one in costly}) < 2:
        return epsilon(costly, delta / 2, accountant), answered_by(costly, delta / 2, accountant)
    spent = together(costly) + _conversion(delta / 2)
    if limit is None or math.isinf(limit):
        return max(0.0, float(spent.min())), "rdp"
    order = _order(first, limit, delta / 2)
    return max(0.0, float(spent[order])), "rdp"


def _order(first: Steps, limit: float, delta: float) -> int:
    """Index of the order at which the most releases of the first kind fit under a limit."""
    room = limit - _conversion(delta)
    return int(np.argmax(room / divergences(first.noise_multiplier, first.sample_rate)))


def _conversion(delta: float) -> Curve:
    """What epsilon is above the divergence of each order (Balle et al. 2020, theorem 21)."""
    found: Curve = np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return found
